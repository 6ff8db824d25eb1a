package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// expectID runs a create and returns the generated id that the create prints.
func expectID(t *testing.T, line string) string {
	t.Helper()
	code, stdout, stderr := call(t.Context(), "", strings.Fields(line)...)
	if id := strings.TrimSpace(stdout); code == 0 && protocol.IsGeneratedID(id) {
		return id
	}
	t.Fatalf("%s: %d, %q, %s", line, code, stdout, stderr)
	return ""
}

func TestANameCanBeUsedAgain(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	const create = "sandbox create --image i --name web --wait=false"
	var ids []string
	for range 2 {
		ids = append(ids, expectID(t, create))
		expect(t, create, exitFailure, "")
		expect(t, "sandbox list -q --name web", 0, ids[len(ids)-1])
		expect(t, "sandbox delete web", 0, "web")
	}
	expect(t, "sandbox create --image bad:ref:x --name web --wait=false", exitUsage, "")
	code, stdout, stderr := call(t.Context(), "", "sandbox", "get", "web", "-o", "json")
	var b protocol.Sandbox
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != 0 || b.ID != ids[1] ||
		b.State != protocol.StateDeleted {
		t.Errorf("%d, %q, %s", code, stdout, stderr)
	}
}

// A sandbox that is given several times, by its name or its id, is printed once.
func TestASandboxThatIsGivenTwiceIsPrintedOnce(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	id := expectID(t, "sandbox create --image i --name web --wait=false")
	expectID(t, "sandbox create --image i --name db --wait=false")
	code, stdout, stderr := call(t.Context(), "", "rm", "web", "db", "web", id, "--wait=false")
	if code != 0 || stdout != "web\ndb\n" {
		t.Errorf("got %d, %q, %s", code, stdout, stderr)
	}
}

func TestApplyCreatesADeletedSandboxAgain(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	const text = "name: web\nimage: x\n---\nname: db\nimage: y\n"
	apply := func(text, want string, wantCode int) string {
		t.Helper()
		code, stdout, stderr := call(t.Context(), text, "apply", "-f", "-", "--wait=false")
		if code != wantCode || stdout != want {
			t.Fatalf("want %q, got %d, %q, %s", want, code, stdout, stderr)
		}
		return stderr
	}
	apply(text, "web created\ndb created\n", 0)
	apply(text, "web unchanged\ndb unchanged\n", 0)
	if stderr := apply("name: web\nimage: z\n", "", exitFailure); !strings.Contains(stderr,
		"sandbox web exists with a different image") {
		t.Errorf("apply with a different image: %s", stderr)
	}
	expect(t, "sandbox delete web", 0, "web")
	apply(text, "web created\ndb unchanged\n", 0)
	for bad, field := range map[string]string{"image: x\n": "name", "name: a\nid: b\nimage: x\n": "id",
		"name: a\nimage: x\n---\nid: a\nimage: x\n": "id"} {
		if stderr := apply(bad, "", exitUsage); !strings.Contains(stderr, ": "+field+":") {
			t.Errorf("%q: %s", bad, stderr)
		}
	}
}

func TestAUniquePrefixOfAnIDIsEnough(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	a, b := "01aaa"+strings.Repeat("0", 21), "01aab"+strings.Repeat("0", 21)
	for _, id := range []string{a, b} {
		expect(t, "sandbox create --image i --wait=false --id "+id, 0, id)
	}
	code, _, stderr := call(t.Context(), "", "sandbox", "delete", "01aa")
	if code != exitFailure || !strings.Contains(stderr, a) || !strings.Contains(stderr, b) {
		t.Errorf("an ambiguous prefix: exit code %d, %s", code, stderr)
	}
	expect(t, "sandbox delete 01aaa", 0, "01aaa")
	expect(t, "sandbox list -q", 0, b)
	if code, stdout, stderr := call(t.Context(), "", "sandbox", "events", "01aaa"); code != 0 ||
		!strings.Contains(stdout, string(protocol.SandboxDeleted)) {
		t.Errorf("events: %d, %q, %s", code, stdout, stderr)
	}
}
