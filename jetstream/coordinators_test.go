package jetstream_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestEveryCoordinatorSaysItsNameAndVersion(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	asks := d.opened(t)
	_, err := asks.Coordinators(t.Context())
	wantError(t, err, protocol.Unavailable, "")
	for name, version := range map[string]string{"c1": "1.2.3", "c2": "1.2.4"} {
		c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.url(), User: "@" + name})
		must(t, err)
		t.Cleanup(c.Close)
		background(t, func(ctx context.Context) error { return c.ServeReads(ctx, version, nil, nil) })
	}
	want := []protocol.CoordinatorInfo{{Name: "c1", Version: "1.2.3"}, {Name: "c2", Version: "1.2.4"}}
	eventually.Holds(t, 5*time.Second, "both coordinators answer", func() bool {
		found, err := asks.Coordinators(t.Context())
		return err == nil && slices.Equal(found, want)
	})
}

func TestTheMarginOfALeaseEndsWithItsTrust(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: lockTTL})
	l, err := d.opened(t).AcquireHost(t.Context(), "h1", holder("w1"), 0)
	must(t, err)
	if m := l.Margin(); m <= 0 || m > lockTTL*2/3 {
		t.Errorf("the margin of a new lease is %s", m)
	}
	eventually.Holds(t, 2*lockTTL, "the lease is not trusted any more", func() bool { return l.Check() != nil })
	if m := l.Margin(); m != 0 {
		t.Errorf("the margin of a lease that is not trusted is %s", m)
	}
}
