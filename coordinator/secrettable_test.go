package coordinator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestOneTenantCannotFillTheBucketOfSecrets(t *testing.T) {
	table, revision := newSecretTable(), uint64(0)
	change := func(tenant, name string, size int, removed bool) {
		revision++
		last := table.find(tenant, name).last
		v := protocol.SecretVersion{Version: last + 1, Size: size}
		if removed {
			v = protocol.SecretVersion{Version: last}
		}
		table.take(jetstream.SecretChange{Tenant: tenant, Name: name, Removed: removed, Version: v, Revision: revision})
	}
	room := func(tenant, name string, size int) string {
		if err := table.room(tenant, table.find(tenant, name), size); err != nil {
			return err.Error()
		}
		return ""
	}
	for i := range protocol.MaxTenantSecrets {
		change("many", fmt.Sprint("s", i), 1, false)
	}
	for i := range protocol.MaxTenantBytes / protocol.MaxSecretValue {
		change("bytes", fmt.Sprint("s", i/protocol.MaxSecretVersions), protocol.MaxSecretValue, false)
	}
	for _, tc := range []struct{ tenant, name, want string }{
		{"many", "s0", ""}, {"many", "new", "1001 secrets"},
		{"bytes", "s0", ""}, {"bytes", "new", "bytes in all versions"}, {"other", "new", ""},
	} {
		size := protocol.MaxSecretValue
		if tc.tenant != "bytes" {
			size = 1
		}
		if got := room(tc.tenant, tc.name, size); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("tenant %s, secret %s: want %q, got %q", tc.tenant, tc.name, tc.want, got)
		}
	}
	// Concurrent requests have exceeded the limits together.
	change("many", "beyond", 1, false)
	if got := room("many", "s0", 1); got != "" {
		t.Errorf("a tenant beyond the limit sets its secret again: %s", got)
	}
	change("many", "beyond", 0, true)
	change("many", "s1", 0, true)
	if got := room("many", "new", 1); got != "" {
		t.Errorf("after a removal: %s", got)
	}
}

// TestATableOfSecretsDoesNotGrow checks a coordinator that sets no secret itself: others purge the bucket, and it does
// not notice.
func TestATableOfSecretsDoesNotGrow(t *testing.T) {
	table, revision := newSecretTable(), uint64(0)
	for i := range 2 * protocol.MaxTenantNames {
		name := fmt.Sprint("s", i)
		number := table.next("blue", table.find("blue", name))
		if number > revision+1 {
			t.Fatalf("version %d would have revision %d", number, revision+1)
		}
		for _, removed := range []bool{false, true} {
			revision++
			v := protocol.SecretVersion{Version: number, Size: 1}
			table.take(jetstream.SecretChange{Tenant: "blue", Name: name, Removed: removed, Version: v, Revision: revision})
		}
	}
	if n := len(table.secrets); n > protocol.MaxTenantNames+spareNames || table.uses["blue"].names != n {
		t.Errorf("the table has %d secrets and counts %+v", n, table.uses["blue"])
	}
	first := table.find("blue", "s0")
	if first.last != 0 {
		t.Errorf("the secret that was removed first is still known: %+v", first)
	}
	if number := table.next("blue", first); number <= 1 {
		t.Errorf("a forgotten secret gets version %d again", number)
	}
}
