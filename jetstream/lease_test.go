package jetstream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func holder(name string) jetstream.Holder {
	return jetstream.Holder{Name: name, Instance: name + "-1", Detail: "pid 1"}
}

// renewed runs the renewals of a lease; stop ends them, as a paused process does.
func renewed(t testing.TB, l *jetstream.Lease) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }() // Check and Lost say how it ended
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// whenFenced gives the moment from which on the lease may no longer be trusted.
func whenFenced(l *jetstream.Lease) <-chan time.Time {
	fenced := make(chan time.Time, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for l.Check() == nil {
			<-tick.C
		}
		fenced <- time.Now()
	}()
	return fenced
}

// takeWhenOver tries to take a host's lock until it is free.
func takeWhenOver(t testing.TB, c *jetstream.Conn, host string, h jetstream.Holder, within time.Duration) (*jetstream.Lease, time.Time) {
	t.Helper()
	var l *jetstream.Lease
	eventually(t, within, "the lock taken by "+h.Name, func() bool {
		var err error
		l, err = c.AcquireHost(t.Context(), host, h, 0)
		return err == nil
	})
	return l, time.Now()
}

func TestASecondHolderIsToldWhoTheFirstIs(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		first, err := a.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		must(t, first.Check())
		if first.TTL() != lockTTL {
			t.Fatalf("the lease lasts %s", first.TTL())
		}
		_, err = b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0)
		var held *jetstream.HeldError
		if !errors.As(err, &held) || held.Holder.Name != "w1" || held.Holder.Detail != "pid 1" || held.Revision != first.Token() {
			t.Fatalf("%v, the first has token %d", err, first.Token())
		}
		if err := b.SeizeHost(t.Context(), d.tenant, holder("k1"), func(uint64) error { t.Error("seized"); return nil }); !errors.As(err, &held) {
			t.Fatal(err)
		}

		// Who knows that the first is gone takes its very revision, once.
		second, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), held.Revision)
		must(t, err)
		if _, err := a.AcquireHost(t.Context(), d.tenant, holder("w3"), held.Revision); !errors.As(err, &held) || held.Holder.Name != "w2" {
			t.Fatal(err)
		}
		if second.Token() <= first.Token() {
			t.Fatalf("token %d after %d", second.Token(), first.Token())
		}
		// The first one, which was paused and not gone, is refused and knows it.
		renewed(t, first)
		receive(t, 5*time.Second, "the loss", first.Lost())
		wantError(t, first.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)

		must(t, second.Release(t.Context()))
		wantError(t, second.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
		start := time.Now()
		third, err := a.AcquireHost(t.Context(), d.tenant, holder("w3"), 0)
		must(t, err)
		if third.Token() <= second.Token() || time.Since(start) > time.Second {
			t.Fatalf("token %d after %d, %s after the release", third.Token(), second.Token(), time.Since(start))
		}
		must(t, third.Release(t.Context()))
		seized := uint64(0)
		must(t, b.SeizeHost(t.Context(), d.tenant, holder("k1"), func(token uint64) error { seized = token; return nil }))
		if seized <= third.Token() {
			t.Fatalf("token %d after %d", seized, third.Token())
		}
	})
}

func TestRenewalsMoveTheEndOfALease(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		l, err := a.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		renewed(t, l)
		over := time.After(2*lockTTL + lockTTL/6)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			must(t, l.Check())
			var held *jetstream.HeldError
			if _, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0); !errors.As(err, &held) {
				t.Fatalf("taken from a holder that renews: %v", err)
			}
		}
	})
}

func TestAHolderThatIsCutOffFencesItselfBeforeTheLockIsFree(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		a, b := d.connTo(t, p.url()), d.opened(t)
		l, err := a.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		renewed(t, l)
		eventually(t, lockTTL, "a renewal", func() bool {
			var held *jetstream.HeldError
			_, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0)
			return errors.As(err, &held) && held.Revision > l.Token()
		})
		cut := time.Now()
		p.partition()
		fenced := whenFenced(l)
		second, taken := takeWhenOver(t, b, d.tenant, holder("w2"), 3*lockTTL)
		at := receive(t, time.Second, "the fence", fenced)
		t.Logf("cut off at 0, fenced after %s, taken after %s", at.Sub(cut), taken.Sub(cut))
		if margin := taken.Sub(at); margin < lockTTL/4 {
			t.Fatalf("fenced only %s before the lock was taken", margin)
		}
		if second.Token() <= l.Token() {
			t.Fatalf("token %d after %d", second.Token(), l.Token())
		}
		p.heal()
		receive(t, 5*time.Second, "the loss", l.Lost())
	})
}

func TestAHolderThatWasPausedTooLongCannotRenew(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		second, _ := takeWhenOver(t, d.opened(t), d.tenant, holder("w2"), 2*lockTTL)
		must(t, second.Release(t.Context()))
		wantError(t, l.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
		renewed(t, l)
		receive(t, 5*time.Second, "the loss", l.Lost())
	})
}

func TestARenewalWhoseAnswerWasLostIsNotALostLease(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		a, b := d.connTo(t, p.url()), d.opened(t)
		l, err := a.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		revision := func() uint64 {
			var held *jetstream.HeldError
			if _, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0); !errors.As(err, &held) {
				t.Fatal(err)
			}
			return held.Revision
		}
		p.mute.Store(true)
		renewed(t, l)
		eventually(t, lockTTL, "the renewal", func() bool { return revision() > l.Token() })
		unheard := revision()
		p.cut()
		p.heal()
		eventually(t, lockTTL, "the next renewal", func() bool { return revision() > unheard })
		eventually(t, lockTTL, "the trust", func() bool { return l.Check() == nil })
		select {
		case <-l.Lost():
			t.Fatal("lost to itself")
		default:
		}
	})
}

func TestTheSameInstanceThatTakesItsOldLeaseAgainMayTrustItFromNow(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: lockTTL})
	c := d.opened(t)
	first, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	eventually(t, 2*lockTTL, "the end of the trust", func() bool { return first.Check() != nil })
	again, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	if again.Token() <= first.Token() {
		t.Fatalf("token %d after %d", again.Token(), first.Token())
	}
	fenced := whenFenced(again)
	_, taken := takeWhenOver(t, d.opened(t), d.tenant, holder("w2"), 2*lockTTL)
	if at := receive(t, time.Second, "the fence", fenced); !at.Before(taken) {
		t.Fatalf("fenced %s after the lock was taken", at.Sub(taken))
	}
}

// A renewal that finds its own value in the way knows that an earlier one had worked, and not when.
func TestARenewalThatFindsItsOwnValueGivesNoTrust(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: lockTTL})
	c := d.opened(t)
	l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	_, err = c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0) // stands for a renewal whose answer was lost
	must(t, err)
	time.Sleep(lockTTL * 5 / 10) // the lease has to live until the second renewal
	begin := time.Now()
	renewed(t, l)
	eventually(t, lockTTL, "the end of the trust", func() bool { return l.Check() != nil })
	eventually(t, lockTTL, "the trust", func() bool { return l.Check() == nil })
	if after := time.Since(begin); after < lockTTL*3/10 { // renewals come each sixth of it: this one is the second
		t.Errorf("trusted %s after the first renewal was tried", after-lockTTL/6)
	}
}

func TestTheSchedulersLockPassesOnWhenItsHolderIsGone(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{ElectionTTL: 2 * time.Second})
	a, b := d.opened(t), d.opened(t)
	first, err := a.AcquireScheduler(t.Context(), holder("k1"))
	must(t, err)
	_, err = b.AcquireScheduler(t.Context(), holder("k2"))
	var held *jetstream.HeldError
	if !errors.As(err, &held) {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the lock", func() bool {
		second, err := b.AcquireScheduler(t.Context(), holder("k2"))
		return err == nil && second.Token() > first.Token()
	})
}
