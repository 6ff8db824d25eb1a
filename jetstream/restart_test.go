package jetstream_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// followEverything starts a follower of each kind on a connection. heard has a channel for each follower, which
// delivers the messages that the follower received. twice delivers the records that the follower of the log received a
// second time.
func followEverything(t *testing.T, d *deployment, k *jetstream.Conn) (
	heard map[string]chan string, twice <-chan uint64) {
	t.Helper()
	heard = map[string]chan string{}
	for _, name := range []string{"events", "hosts", "reservations", "requests", "work", "live", "reconnect"} {
		heard[name] = make(chan string, 1000)
	}
	followed, twiceFollowed := map[uint64]bool{}, make(chan uint64, 100)
	background(t, func(ctx context.Context) error {
		return k.FollowEvents(ctx, 0, func(b *protocol.Batch) {
			if followed[b.Record] {
				twiceFollowed <- b.Record
			}
			followed[b.Record] = true
			for _, e := range b.Events {
				if e.Exec != nil {
					heard["events"] <- e.Exec.ID
				}
			}
		}, nil)
	})
	background(t, func(ctx context.Context) error {
		return k.FollowHosts(ctx, func(worker string, h *protocol.Host, _ uint64) { heard["hosts"] <- worker }, nil)
	})
	background(t, func(ctx context.Context) error {
		handle := func(_, sandbox string, _ *protocol.Reservation, _ uint64) { heard["reservations"] <- sandbox }
		return k.FollowReservations(ctx, 0, handle, nil)
	})
	background(t, func(ctx context.Context) error {
		return k.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
			heard["requests"] <- r.ID
			return nil
		})
	})
	stop, err := k.Work("w1", func(_, sandbox string, _ *protocol.Batch) { heard["work"] <- sandbox })
	must(t, err)
	t.Cleanup(stop)
	stop, err = k.Live(d.tenant, "s1", func(b *protocol.Batch) {
		for _, e := range b.Events {
			if e.Exec != nil {
				heard["live"] <- e.Exec.ID
			}
		}
	})
	must(t, err)
	t.Cleanup(stop)
	t.Cleanup(k.OnReconnect(func() { heard["reconnect"] <- "back" }))
	must(t, k.Flush(t.Context()))
	return heard, twiceFollowed
}

// Within three seconds of the server's return, every follower receives new messages, and no follower misses a message.
// Followers of the log receive no message twice.
func TestEveryFollowerRecoversWithinThreeSecondsOfARestart(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, k := d.opened(t), d.opened(t)
	ctx := context.WithoutCancel(t.Context())
	readySandbox(t, c, d.tenant, "s1")
	writer := journal(c, d.tenant, "s1", "k1")

	heard, twice := followEverything(t, d, k)

	// write makes a new message for each follower as soon as the server accepts it.
	write := func(id string) {
		for what, f := range map[string]func() error{
			"event": func() error { _, err := writer.Do(ctx, acceptExec(id)); return err },
			"host":  func() error { return c.RegisterHost(ctx, &protocol.Host{Worker: id, HostID: id}) },
			"reservation": func() error {
				_, err := c.ReserveSandbox(ctx, d.tenant, id, protocol.Reservation{Request: id})
				return err
			},
			"request": func() error { return c.Submit(ctx, d.tenant, protocol.VerbStop, id, id, "", nil) },
			"work":    func() error { return c.NotifyWithoutBatch("w1", d.tenant, id) },
		} {
			eventually.Holds(t, 3*time.Second, what+" is written", func() bool { return f() == nil })
		}
	}
	write("first")
	for name, ch := range heard {
		if name != "reconnect" {
			if got := receive(t, 5*time.Second, name, ch); got != "first" {
				t.Fatalf("the follower of %s received %q first, want \"first\"", name, got)
			}
		}
	}
	for round := range 2 {
		id := fmt.Sprintf("after%d", round)
		back := d.restart(t)
		// Core messages reach only connected subscribers. OnReconnect tells a subscriber that it was disconnected.
		receive(t, 3*time.Second, "the call of OnReconnect's function", heard["reconnect"])
		must(t, k.Flush(ctx)) // after Flush, the server has the subscriptions of k
		write(id)
		for name, ch := range heard {
			if name == "reconnect" {
				continue
			}
			for got := ""; got != id; { // a queue may deliver unacknowledged messages again
				got = receive(t, 3*time.Second-time.Since(back), name+" after the restart", ch)
			}
		}
		t.Logf("every follower recovered %s after the server's return", time.Since(back))
	}
	select {
	case record := <-twice:
		t.Errorf("the follower of the log received record %d twice", record)
	default:
	}
}

func TestEveryFollowerInAClusterRecoversFromTheLossOfAServer(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, k := d.opened(t), d.opened(t)
	ctx := context.WithoutCancel(t.Context())
	readySandbox(t, c, d.tenant, "s1")
	writer := journal(c, d.tenant, "s1", "k1")
	events, requests := make(chan string, 1000), make(chan string, 1000)
	background(t, func(ctx context.Context) error {
		return k.FollowEvents(ctx, 0, func(b *protocol.Batch) {
			if x := b.Events[0].Exec; x != nil {
				events <- x.ID
			}
		}, nil)
	})
	background(t, func(ctx context.Context) error {
		return k.ConsumeRequests(ctx, func(_ context.Context, r *jetstream.Delivery) error {
			requests <- r.ID
			return nil
		})
	})
	for round := range 2 {
		id := fmt.Sprintf("x%d", round)
		_, err := writer.Do(ctx, acceptExec(id))
		must(t, err)
		lost := time.Now()
		eventually.Holds(t, 15*time.Second, "the request is stored", func() bool {
			bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return c.Submit(bounded, d.tenant, protocol.VerbStop, id, id, "", nil) == nil
		})
		for what, ch := range map[string]chan string{"event": events, "request": requests} {
			for got := ""; got != id; {
				got = receive(t, 15*time.Second, what, ch)
			}
		}
		t.Logf("round %d: both followers received their message after %s", round, time.Since(lost))
		if round == 0 {
			d.servers[0].Stop()
		}
	}
}
