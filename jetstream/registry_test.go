package jetstream_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestExactlyOneOfEightReservationsOfAnIDWins(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		const rounds, callers = 50, 8
		conns := make([]*jetstream.Conn, callers)
		for i := range conns {
			conns[i] = d.opened(t)
		}
		for round := range rounds {
			id := fmt.Sprintf("s%d", round)
			type result struct {
				mine   string
				before *protocol.Reservation
				err    error
			}
			results := make(chan result, callers)
			for i, c := range conns {
				mine := fmt.Sprintf("r%d", i)
				go func() {
					ctx := context.WithoutCancel(t.Context())
					before, err := c.ReserveSandbox(ctx, d.tenant, id, protocol.Reservation{Request: mine})
					results <- result{mine, before, err}
				}()
			}
			winner, others := "", map[string]bool{}
			for range conns {
				r := <-results
				must(t, r.err)
				if r.before == nil {
					if winner != "" {
						t.Fatalf("requests %s and %s both reserved %s", winner, r.mine, id)
					}
					winner = r.mine
				} else {
					others[r.before.Request] = true
				}
			}
			if len(others) != 1 || !others[winner] {
				t.Fatalf("request %s reserved %s, but the other callers got the reservations of %v", winner, id, others)
			}
		}
	})
}

func TestAReservationSurvivesARestart(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	mine := protocol.Reservation{Request: "r1", Fingerprint: "f"}
	if before, err := c.ReserveSandbox(ctx, d.tenant, "s1", mine); before != nil || err != nil {
		t.Fatal(before, err)
	}
	d.restart(t)
	var before *protocol.Reservation
	var err error
	eventually.Holds(t, 5*time.Second, "the registry answers", func() bool {
		before, err = c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r2"})
		return protocol.CodeOf(err) != protocol.Unavailable
	})
	if err != nil || before == nil || before.Request != "r1" || before.Fingerprint != "f" {
		t.Fatal(before, err)
	}
	_, err = c.SandboxReservation(ctx, d.tenant, "never")
	wantError(t, err, protocol.NotFound, "")
}

func TestAReservationWithALostAnswerIsRecognized(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		c, other := d.connTo(t, p.url()), d.opened(t)
		p.mute.Store(true)
		errs := make(chan error, 1)
		go func() {
			_, err := c.ReserveSandbox(t.Context(), d.tenant, "s1", protocol.Reservation{Request: "r1"})
			errs <- err
		}()
		eventually.Holds(t, 5*time.Second, "the id is reserved", func() bool {
			before, err := other.ReserveSandbox(t.Context(), d.tenant, "s1", protocol.Reservation{Request: "r1"})
			return err == nil && before != nil
		})
		p.cut()
		p.heal()
		_ = receive(t, 10*time.Second, "the end of the first attempt", errs) // the first attempt may succeed or fail
		eventually.Holds(t, 5*time.Second, "the client is connected again", c.Connected)
		before, err := c.ReserveSandbox(t.Context(), d.tenant, "s1", protocol.Reservation{Request: "r1"})
		if err != nil || before == nil || before.Request != "r1" {
			t.Fatal(before, err)
		}
	})
}

func writeExecIDs(t testing.TB, c *jetstream.Conn, tenant, sandbox string, page int, hashes []uint64) {
	t.Helper()
	_, err := c.WriteExecIDs(t.Context(), tenant, sandbox, page, hashes, 0)
	must(t, err)
}

func TestPagesOfExecIDsAreReadBack(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		writeExecIDs(t, c, d.tenant, "s1", 0, []uint64{1, 1 << 63})
		writeExecIDs(t, c, d.tenant, "s1", 1, []uint64{3})
		writeExecIDs(t, c, d.tenant, "s1", 1, []uint64{3, 4}) // the page grows
		writeExecIDs(t, c, d.tenant, "s2", 0, nil)
		got := map[string][]uint64{}
		must(t, c.ReadExecIDs(ctx, func(tenant, sandbox string, page int, hashes []uint64) {
			if tenant == d.tenant {
				got[fmt.Sprint(sandbox, "/", page)] = hashes
			}
		}))
		want := map[string][]uint64{"s1/0": {1, 1 << 63}, "s1/1": {3, 4}, "s2/0": {}}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestEveryReservationIsFollowed(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		heard := make(chan string, 10)
		reserve := func(id string) {
			_, err := c.ReserveSandbox(t.Context(), d.tenant, id, protocol.Reservation{Request: "r-" + id})
			must(t, err)
		}
		reserve("before")
		background(t, func(ctx context.Context) error {
			return c.FollowReservations(ctx, 0, func(tenant, sandbox string, r *protocol.Reservation, _ uint64) {
				if tenant == d.tenant {
					heard <- sandbox + " " + r.Request
				}
			}, nil)
		})
		if got := receive(t, 5*time.Second, "the existing reservation", heard); got != "before r-before" {
			t.Fatalf("received %q as the existing reservation", got)
		}
		reserve("after")
		if got := receive(t, 5*time.Second, "the new reservation", heard); got != "after r-after" {
			t.Fatalf("received %q as the new reservation", got)
		}
	})
}
