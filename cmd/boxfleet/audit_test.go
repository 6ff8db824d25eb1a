package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// An audit line names the user, the event that the request caused, and the sandbox and exec of the event.
func TestTheAuditSaysWhoAskedForWhat(t *testing.T) {
	at := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	e := &protocol.Event{Sequence: 7, Kind: protocol.ExecAccepted, Time: at, State: protocol.StateReady, Tenant: "acme",
		Sandbox: "s1", Request: "r1", Actor: "alice",
		Exec: &protocol.ExecDetails{ID: "x1", Spec: &protocol.ExecSpec{Command: []string{"echo", "<a>"}}}}
	line, err := json.Marshal(auditLineOf(e, &protocol.Sandbox{Name: "web"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"actor":"alice"`, `"kind":"exec.accepted"`, `"exec":"x1"`, `"command":["echo"`,
		`"name":"web"`, `"seq":7`, `"time":"2031-02-03T04:05:06Z"`} {
		if !strings.Contains(string(line), want) {
			t.Errorf("%s lacks %s", line, want)
		}
	}
}

// An operator audits any tenant, or all tenants, including a tenant whose sandboxes are all deleted. A user audits only
// their own tenant.
func TestAnOperatorAuditsAllTenants(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	for tenant, user := range map[string]string{"acme": "anna", "blue": "bert", "gone": "gina"} {
		as := []string{"--tenant", tenant, "--nats-user", user}
		create := []string{"sandbox", "create", "--image", "i", "--name", "web", "--wait=false"}
		if code, _, stderr := call(t.Context(), "", append(create, as...)...); code != 0 {
			t.Fatal(stderr)
		}
		if tenant == "gone" {
			if code, _, stderr := call(t.Context(), "", append([]string{"rm", "web"}, as...)...); code != 0 {
				t.Fatal(stderr)
			}
		}
	}
	audited := func(args ...string) (tenants string) {
		t.Helper()
		code, stdout, stderr := call(t.Context(), "", append([]string{"audit"}, args...)...)
		if code != 0 {
			t.Fatalf("audit %q: %d, %s", args, code, stderr)
		}
		for line := range strings.Lines(stdout) {
			var l auditLine
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(tenants, l.Tenant+" ") {
				tenants += l.Tenant + " "
			}
		}
		return tenants
	}
	const operator = "@otto"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tenant", "*", "--nats-user", operator}, "acme blue gone "},
		{[]string{"--tenant", "*", "--nats-user", operator, "--since", "1h"}, "acme blue gone "},
		{[]string{"--tenant", "*", "--nats-user", operator, "--actor", "bert"}, "blue "},
		{[]string{"--tenant", "*", "--nats-user", operator, "--since", "2100-01-01T00:00:00Z"}, ""},
		{[]string{"--tenant", "gone", "--nats-user", operator}, "gone "},
		{[]string{"--tenant", "acme", "--nats-user", "anna"}, "acme "},
	} {
		if got := audited(c.args...); got != c.want {
			t.Errorf("audit %q prints the tenants %q, want %q", c.args, got, c.want)
		}
	}
	code, stdout, stderr := call(t.Context(), "", "audit", "--tenant", "*", "--nats-user", "anna")
	if code == 0 || stdout != "" || !strings.Contains(stderr, "operators") {
		t.Errorf("a user audits all tenants: %d, %q, %q", code, stdout, stderr)
	}
}
