package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func holder(name string) jetstream.Holder {
	return jetstream.Holder{Name: name, Instance: name + "-1", Detail: "pid 1"}
}

// renewed runs the renewals of a lease; stop ends them, as if the process were paused.
func renewed(t testing.TB, l *jetstream.Lease) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }() // Check and Lost say how it ended
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// whenFenced returns the last time at which the lease was trusted, once it no longer is. A stalled machine makes it
// earlier, never later.
func whenFenced(l *jetstream.Lease) <-chan time.Time {
	fenced := make(chan time.Time, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		var trusted time.Time
		for before := time.Now(); l.Check() == nil; before = time.Now() {
			trusted = before
			<-tick.C
		}
		fenced <- trusted
	}()
	return fenced
}

// looks records the longest time between two checks of something. If the machine stalls long enough, a test's lease
// rightly ends without a fault of the renewals.
type looks struct {
	last    time.Time
	longest time.Duration
}

func (s *looks) look() {
	now := time.Now()
	if !s.last.IsZero() {
		s.longest = max(s.longest, now.Sub(s.last))
	}
	s.last = now
}

// undisturbed repeats a measurement, under another name, if the machine stalled meanwhile, because its result then
// means nothing. A machine that never runs smoothly enough fails the test.
func undisturbed(t testing.TB, measure func(seen *looks, name string) error) {
	t.Helper()
	for try := range 5 {
		var seen looks
		err := measure(&seen, fmt.Sprint("try", try))
		if err == nil {
			return
		}
		if seen.look(); seen.longest <= lockTTL/6 {
			t.Fatal(err)
		}
		t.Logf("the machine stalled for %s: %v", seen.longest, err)
	}
	t.Fatal("the machine stalled in every attempt")
}

// takeWhenOver retries to take a host's lock until it is free.
func takeWhenOver(
	t testing.TB,
	c *jetstream.Conn,
	host string,
	h jetstream.Holder,
	within time.Duration,
) (*jetstream.Lease, time.Time) {
	t.Helper()
	var l *jetstream.Lease
	eventually.Holds(t, within, "the lock taken by "+h.Name, func() bool {
		var err error
		l, err = c.AcquireHost(t.Context(), host, h, 0)
		return err == nil
	})
	return l, time.Now()
}

func TestASecondHolderLearnsWhoTheFirstIs(t *testing.T) {
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
		if !errors.As(err, &held) || held.Holder.Name != "w1" || held.Holder.Detail != "pid 1" ||
			held.Revision != first.Token() {
			t.Fatalf("%v, the first has token %d", err, first.Token())
		}
		if err := b.SeizeHost(
			t.Context(),
			d.tenant,
			holder("k1"),
			func(uint64) error { t.Error("seized"); return nil },
		); !errors.As(
			err,
			&held,
		) {
			t.Fatal(err)
		}

		// A process that knows that the first holder is gone takes over its exact revision, once.
		second, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), held.Revision)
		must(t, err)
		if _, err := a.AcquireHost(
			t.Context(),
			d.tenant,
			holder("w3"),
			held.Revision,
		); !errors.As(err, &held) ||
			held.Holder.Name != "w2" {
			t.Fatal(err)
		}
		if second.Token() <= first.Token() {
			t.Fatalf("token %d after %d", second.Token(), first.Token())
		}
		// The first holder was only paused: its renewal is refused and it learns that it lost the lock.
		renewed(t, first)
		receive(t, 5*time.Second, "the loss", first.Lost())
		wantError(t, first.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)

		must(t, second.Release(t.Context()))
		wantError(t, second.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
		third, err := a.AcquireHost(t.Context(), d.tenant, holder("w3"), 0) // which does not wait
		must(t, err)
		if third.Token() <= second.Token() {
			t.Fatalf("token %d after %d", third.Token(), second.Token())
		}
		must(t, third.Release(t.Context()))
		seized := uint64(0)
		must(
			t,
			b.SeizeHost(t.Context(), d.tenant, holder("k1"), func(token uint64) error { seized = token; return nil }),
		)
		if seized <= third.Token() {
			t.Fatalf("token %d after %d", seized, third.Token())
		}
	})
}

func TestRenewalsExtendALease(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		undisturbed(t, func(seen *looks, name string) error {
			l, err := a.AcquireHost(t.Context(), d.tenant+name, holder("w1"), 0)
			must(t, err)
			renewed(t, l)
			over := time.After(2*lockTTL + lockTTL/6)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				seen.look()
				if err := l.Check(); err != nil {
					return fmt.Errorf("a holder that renews fences itself: %v", err)
				}
				var held *jetstream.HeldError
				if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); !errors.As(err, &held) {
					return fmt.Errorf("taken from a holder that renews: %v", err)
				}
				select {
				case <-over:
					return nil
				case <-tick.C:
				}
			}
		})
	})
}

func TestADisconnectedHolderFencesItselfBeforeTheLockIsFree(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		a, b := d.connTo(t, p.url()), d.opened(t)
		l, err := a.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
		must(t, err)
		renewed(t, l)
		eventually.Holds(t, lockTTL, "a renewal", func() bool {
			var held *jetstream.HeldError
			_, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0)
			return errors.As(err, &held) && held.Revision > l.Token()
		})
		cut := time.Now()
		p.partition()
		fenced := whenFenced(l)
		second, taken := takeWhenOver(t, b, d.tenant, holder("w2"), 3*lockTTL)
		at := receive(t, 5*time.Second, "the fence", fenced)
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
		undisturbed(t, func(seen *looks, name string) error {
			l, err := a.AcquireHost(t.Context(), d.tenant+name, holder("w1"), 0)
			must(t, err)
			var taken error // from its holder
			last := uint64(0)
			// renewedAfter reports whether the lease has another revision or was lost.
			renewedAfter := func(revision uint64) func() bool {
				return func() bool {
					seen.look()
					var held *jetstream.HeldError
					if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); !errors.As(err, &held) {
						taken = fmt.Errorf("taken from a holder that renews: %v", err)
						return true
					}
					last = held.Revision
					return last > revision
				}
			}
			p.mute.Store(true)
			renewed(t, l)
			if eventually.Holds(t, lockTTL, "the renewal", renewedAfter(l.Token())); taken != nil {
				return taken
			}
			p.cut()
			p.heal()
			if eventually.Holds(t, lockTTL, "the next renewal", renewedAfter(last)); taken != nil {
				return taken
			}
			eventually.Holds(t, lockTTL, "the trust", func() bool { return l.Check() == nil })
			select {
			case <-l.Lost():
				return errors.New("lost to itself")
			default:
			}
			return taken
		})
	})
}

func TestALeaseTakenAgainByItsOwnInstanceIsTrustedFromNow(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: lockTTL})
	c := d.opened(t)
	first, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	eventually.Holds(t, 2*lockTTL, "the end of the trust", func() bool { return first.Check() != nil })
	again, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	if again.Token() <= first.Token() {
		t.Fatalf("token %d after %d", again.Token(), first.Token())
	}
	fenced := whenFenced(again)
	_, taken := takeWhenOver(t, d.opened(t), d.tenant, holder("w2"), 2*lockTTL)
	if at := receive(t, 5*time.Second, "the fence", fenced); !at.Before(taken) {
		t.Fatalf("fenced %s after the lock was taken", at.Sub(taken))
	}
}

// A renewal that finds its own value knows that an earlier one succeeded, but not when.
func TestARenewalThatFindsItsOwnValueDoesNotRestoreTrust(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: time.Minute})
	c := d.opened(t)
	l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	_, err = c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0) // stands for a renewal whose answer was lost
	must(t, err)
	before := l.TrustedUntil()
	if trusted, err := l.Renew(t.Context()); err != nil || trusted || l.TrustedUntil() != before {
		t.Fatalf("trusted for %s longer, %v, %v", l.TrustedUntil()-before, trusted, err)
	}
	if trusted, err := l.Renew(t.Context()); err != nil || !trusted || l.TrustedUntil() <= before {
		t.Fatalf("the next renewal gives no trust: %v, %v", trusted, err)
	}
}

// The renewal that restores trust does not wait for a sixth of the lease, as the others do.
func TestARenewalWithoutTrustIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	const ttl = 18 * time.Second
	d := startServer(t, jetstream.Assets{LockTTL: ttl})
	c := d.opened(t)
	l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	_, err = c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0) // stands for a renewal whose answer was lost
	must(t, err)
	before, began := l.TrustedUntil(), time.Now()
	renewed(t, l)
	eventually.Holds(t, ttl*2/3, "the trust", func() bool { return l.TrustedUntil() > before })
	if took := time.Since(began); took >= 2*(ttl/6) {
		t.Errorf("trusted after %s", took)
	}
}

// A process that stops during a renewal does not know its outcome.
func TestALeaseIsReleasedDuringARenewal(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		a, b := d.connTo(t, p.url()), d.opened(t)
		undisturbed(t, func(seen *looks, name string) error {
			seen.look()
			l, err := a.AcquireHost(t.Context(), d.tenant+name, holder("w1"), 0)
			must(t, err)
			p.mute.Store(true)
			stop := renewed(t, l)
			eventually.Holds(t, lockTTL, "the renewal", func() bool {
				seen.look()
				var held *jetstream.HeldError
				_, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0)
				return errors.As(err, &held) && held.Revision > l.Token()
			})
			stop()
			p.heal()
			if err := l.Release(t.Context()); err != nil {
				return fmt.Errorf("not released: %v", err)
			}
			if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); err != nil {
				return fmt.Errorf("after the release: %v", err)
			}
			return nil
		})
	})
}

func TestASeizedHostIsReleasedAfterItsCallerIsGone(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		ctx, cancel := context.WithCancel(t.Context())
		must(t, c.SeizeHost(ctx, d.tenant, holder("k1"), func(uint64) error { cancel(); return nil }))
		if _, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0); err != nil {
			t.Fatalf("after it was given up: %v", err)
		}
	})
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
	eventually.Holds(t, 5*time.Second, "the lock", func() bool {
		second, err := b.AcquireScheduler(t.Context(), holder("k2"))
		return err == nil && second.Token() > first.Token()
	})
}
