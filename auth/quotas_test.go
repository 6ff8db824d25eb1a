package auth_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// Two coordinators with credentials of their own keep a quota together. A user and a viewer see their own tenant, and
// an operator and a fleet viewer see all.
func TestCoordinatorsWithCredentialsKeepAQuota(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, s := newAuthority(t)
	quotas, err := spec.ParseQuotas([]byte("blue: {waiting: 3}"), spec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conns := map[string]*roleConn{}
	for _, name := range []string{"c1", "c2"} {
		conns[name] = open(t, a, s.ClientURL(), someone(rights.Coordinator, name, "", ""))
		ready, ended := make(chan struct{}), make(chan error, 1)
		running, stop := context.WithCancel(context.Background())
		go func() {
			ended <- coordinator.Run(running, coordinator.Config{Conn: conns[name].Conn, Name: name, Build: "0.0.1",
				Logger: slog.New(slog.DiscardHandler), OnReady: func() { close(ready) },
				ReadQuotas: func() (spec.Quotas, error) { return quotas, nil }})
		}()
		t.Cleanup(func() { stop(); <-ended })
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("coordinator %s ended: %v; refused: %q", name, err, conns[name].refusals(t))
		}
	}
	client := func(id rights.Identity) *sdk.Client {
		t.Helper()
		c, err := sdk.Connect(ctx, sdk.Options{Conn: open(t, a, s.ClientURL(), id).Conn, Tenant: "blue"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	user := client(someone(rights.User, "anna", "blue", ""))
	accepted := 0
	for i := range 12 {
		_, err := user.Create(ctx, sdk.SandboxSpec{Image: "busybox"}, sdk.WithID(fmt.Sprint("s", i)), sdk.WithWait(false))
		switch {
		case err == nil:
			accepted++
		case protocol.AsError(err).Reason != protocol.ReasonQuotaWaiting:
			t.Fatalf("a create fails with %v", err)
		}
	}
	if accepted != 3 {
		t.Errorf("%d creates are accepted, want 3", accepted)
	}
	for name, c := range map[string]*sdk.Client{
		"user": user, "viewer": client(someone(rights.Viewer, "vera", "blue", "")),
		"fleet viewer": client(someone(rights.FleetViewer, "fred", "", "")),
		"operator":     client(someone(rights.Operator, "otto", "", "")),
	} {
		eventually.Holds(t, 10*time.Second, "the "+name+" sees the tenant", func() bool {
			got, err := c.TenantInfo(ctx)
			if err != nil {
				t.Fatalf("the %s reads the tenant: %v", name, err)
			}
			return got.Quota.Waiting == 3 && got.Used.Waiting == 3 && got.Used.Uploads != nil
		})
		all, err := sdk.ReadAll(c.Tenants(ctx))
		outside := name == "fleet viewer" || name == "operator"
		if outside && (err != nil || len(all) != 1 || all[0].Tenant != "blue") ||
			!outside && protocol.CodeOf(err) != protocol.PermissionDenied {
			t.Errorf("the %s lists the tenants %+v, %v", name, all, err)
		}
	}
	for name, c := range conns {
		if refused := c.refusals(t); len(refused) > 0 {
			t.Errorf("the server refuses coordinator %s %q", name, refused)
		}
	}
}
