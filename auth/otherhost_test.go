package auth_test

import (
	"testing"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// TestAWorkerWhoseEngineBecomesAnotherHostAsksForNoForbiddenRight gives a registered worker the credentials of another
// host. After the reconnect, the connection must not register the new key for the old host by itself, because the
// server refuses that. The worker registers the key when it works on the new host.
func TestAWorkerWhoseEngineBecomesAnotherHostAsksForNoForbiddenRight(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, s := newAuthority(t)
	runCoordinator(t, open(t, a, s.ClientURL(), someone(rights.Coordinator, "c1", "", "")), "c1", jetstream.Assets{})
	worker := open(t, a, s.ClientURL(), someone(rights.Worker, "w1", "", "HOSTA"))
	if err := worker.Open(ctx); err != nil {
		t.Fatal(err)
	}
	register := func(host string) {
		t.Helper()
		if err := worker.RegisterWriter(ctx, protocol.OwnerWorker, "w1", host); err != nil {
			t.Fatal(err)
		}
	}
	register("HOSTA")
	if _, err := a.Keep(someone(rights.Worker, "w1", "", "HOSTB"), worker.creds, auth.IssueOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := worker.Reconnect(ctx); err != nil {
		t.Fatal(err)
	}
	register("HOSTB")
	if refused := worker.refusals(t); len(refused) > 0 {
		t.Errorf("the server refuses the worker %q", refused)
	}
}
