package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

// startWithQuotas runs a fleet without hosts and with a file of quotas, and returns the file.
func startWithQuotas(t *testing.T, quotas string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "quotas.yaml")
	write(t, file, quotas)
	t.Setenv("BOXFLEET_COORDINATOR_QUOTAS", file)
	startWithoutHosts(t, 0)
	return file
}

// showTenant runs `tenant show` until the result satisfies ok.
func showTenant(t *testing.T, name string, ok func(*protocol.Tenant) bool) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("the tenant is shown as %s", last)
		}
	}()
	eventually.Holds(t, patience, "the tenant is shown as expected", func() bool {
		code, stdout, stderr := call(t.Context(), "", "tenant", "show", name, "-o", "json")
		last = stdout + stderr
		tenant := &protocol.Tenant{}
		return code == 0 && json.Unmarshal([]byte(stdout), tenant) == nil && ok(tenant)
	})
}

func TestATenantIsShownWithItsQuotaAndUse(t *testing.T) {
	clean(t)
	file := startWithQuotas(t, "'*': {memory: 4GiB}\nacme: {sandboxes: 5, waiting: 2, cpu: 1.5, uploads: 1MiB}\n")
	for _, id := range []string{"a", "b"} {
		expect(t, "sandbox create --tenant acme --image i --cpu 1 --memory 1GiB --wait=false --id "+id, 0, id+"\n")
	}
	code, _, stderr := call(t.Context(), "", "sandbox", "create", "--tenant", "acme", "--image", "i", "--id", "c",
		"--cpu", "1", "--wait=false")
	if code != exitFailure || !strings.Contains(stderr, protocol.ReasonQuotaWaiting) ||
		!strings.Contains(stderr, "the quota of tenant acme allows waiting 2; 2 in use, and this needs 1 more") {
		t.Errorf("a third create that waits: %d, %s", code, stderr)
	}
	code, _, stderr = call(t.Context(), "", "sandbox", "create", "--tenant", "acme", "--image", "i", "--cpu", "2",
		"--wait=false")
	if code != exitFailure || !strings.Contains(stderr, protocol.ReasonQuotaCPU) {
		t.Errorf("a create that could never fit: %d, %s", code, stderr)
	}
	showTenant(t, "acme", func(got *protocol.Tenant) bool {
		return got.Quota == protocol.Quota{Sandboxes: 5, Waiting: 2, CPU: 1.5, Memory: 4 << 30, Uploads: 1 << 20} &&
			got.Used.Waiting == 2 && got.Used.Sandboxes == 0 && got.Used.Output != nil && got.Used.Uploads != nil
	})
	code, stdout, stderr := call(t.Context(), "", "tenant", "show", "acme")
	if code != 0 || !strings.Contains(stdout, "waiting     2      2\n") || !strings.Contains(stdout, "uploads") {
		t.Errorf("tenant show: %d, %s%s", code, stdout, stderr)
	}
	expect(t, "tenant list -q", 0, "acme\n")
	write(t, file, "acme: {sandboxes: -1}\n")   // refused: the quotas that were read before stay in force
	write(t, file, "acme: {waiting: 3}\nb: {}") // replaces the quotas of all tenants
	showTenant(t, "acme", func(got *protocol.Tenant) bool { return got.Quota == protocol.Quota{Waiting: 3} })
	expect(t, "sandbox create --tenant acme --image i --cpu 2 --wait=false --id c", 0, "c\n")
	expect(t, "tenant list -q", 0, "acme\nb\n")
}

func TestAWrongFileOfQuotasIsRefusedAtTheStart(t *testing.T) {
	clean(t)
	file := filepath.Join(t.TempDir(), "quotas.yaml")
	write(t, file, "acme:\n  sandboxes: -1\n  memmory: 1GiB\n")
	code, _, stderr := call(t.Context(), "", "coordinator", "--nats", "nats://127.0.0.1:1", "--quotas", file)
	if code == 0 || !strings.Contains(stderr, "quotas.acme.memmory") {
		t.Errorf("an unknown field: %d, %s", code, stderr)
	}
	write(t, file, "acme:\n  sandboxes: -1\n")
	code, _, stderr = call(t.Context(), "", "coordinator", "--nats", "nats://127.0.0.1:1", "--quotas", file)
	if code == 0 || !strings.Contains(stderr, "quotas.acme.sandboxes: "+file+": line 2, column 14: must not be negative") {
		t.Errorf("a negative limit: %d, %s", code, stderr)
	}
}
