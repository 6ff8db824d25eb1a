package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/evidence"
)

// sandbox verify checks the stored history of a sandbox, saves it to a file, and checks the file without a connection.
func TestTheHistoryOfASandboxIsVerified(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	expect(t, "sandbox create --image i --id web --wait=false", 0, "web\n")
	file := filepath.Join(t.TempDir(), "web.evidence")
	code, stdout, stderr := call(t.Context(), "", "sandbox", "verify", "web", "--check-output", "--save", file)
	if code != 0 {
		t.Fatalf("verify: %d, %s%s", code, stdout, stderr)
	}
	for _, want := range []string{"RECORD", "proven", "sandbox.accepted", "coordinator ", "valid: ", " 0 refused"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
	code, stdout, stderr = call(t.Context(), "", "sandbox", "verify", "web", "-o", "json")
	r := &evidence.Report{}
	err := json.Unmarshal([]byte(stdout), r)
	if code != 0 || err != nil || !r.Valid || r.Sandbox != "web" || r.Proven == 0 {
		t.Errorf("verify -o json: %d, %v, %s%s", code, err, stdout, stderr)
	}
	expect(t, "sandbox verify web --save "+file, exitUsage, "") // the file exists
	expect(t, "sandbox verify unknown", exitFailure, "")
	expect(t, "sandbox verify", exitUsage, "")
	expect(t, "sandbox verify --check-output --file "+file, exitUsage, "")
	expect(t, "sandbox verify --save other --file "+file, exitUsage, "")
	stop()

	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the saved evidence: %v, %v", info, err)
	}
	expect(t, "sandbox verify --file "+file, 0, "valid: ")
	code, stdout, stderr = call(t.Context(), "", "sandbox", "verify", "--file", file, "-o", "json")
	saved := &evidence.Report{}
	if err := json.Unmarshal([]byte(stdout), saved); code != 0 || err != nil || !saved.Valid || saved.Sandbox != "web" {
		t.Errorf("verify --file -o json: %d, %v, %s%s", code, err, stdout, stderr)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(`"sandbox":"web"`), []byte(`"sandbox":"wob"`), 1)
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, "sandbox verify --file "+file, exitFailure, "NOT valid: ")
	expect(t, "sandbox verify -o json --file "+file, exitFailure, `"refused"`)
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, "sandbox verify --file "+file, exitUsage, "")
	expect(t, "sandbox verify --file "+file+".none", exitUsage, "")
	huge := filepath.Join(t.TempDir(), "huge")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, evidenceMost+1); err != nil { // the file takes no space on the disk
		t.Fatal(err)
	}
	if code, _, stderr := call(t.Context(), "", "sandbox", "verify", "--file", huge); code != exitUsage ||
		!strings.Contains(stderr, "file: "+huge+" has more than") {
		t.Errorf("verify of a huge file: %d, %s", code, stderr)
	}
}
