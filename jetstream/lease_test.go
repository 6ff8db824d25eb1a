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

// renewed renews a lease in the background; stop ends the renewals, as if the process were paused.
func renewed(t testing.TB, l *jetstream.Lease) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }() // tests use Check and Lost instead of Run's error
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// whenFenced waits until the lease is no longer trusted, and then delivers the last time at which the lease was
// trusted. If the machine stalls, the delivered time is too early, never too late.
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

// looks records the longest time between two checks in a test. If the machine stalls long enough, the test's lease ends
// although the renewals work.
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

// undisturbed repeats a measurement under another name if the machine stalled during the measurement. The result of
// such a measurement means nothing. If the machine stalls in every attempt, the test fails.
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

// takeWhenOver tries to take a host's lock again and again until it succeeds.
func takeWhenOver(
	t testing.TB,
	c *jetstream.Conn,
	host string,
	h jetstream.Holder,
	within time.Duration,
) (*jetstream.Lease, time.Time) {
	t.Helper()
	var l *jetstream.Lease
	eventually.Holds(t, within, "the lock is taken by "+h.Name, func() bool {
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
			t.Fatalf("the lease lasts %s, want %s", first.TTL(), lockTTL)
		}
		_, err = b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0)
		var held *jetstream.HeldError
		if !errors.As(err, &held) || held.Holder.Name != "w1" || held.Holder.Detail != "pid 1" ||
			held.Revision != first.Token() {
			t.Fatalf("AcquireHost: %v; want a HeldError with the first holder, whose token is %d", err, first.Token())
		}
		seize := func(uint64) error { t.Error("the lock of a living holder was seized"); return nil }
		if err := b.SeizeHost(t.Context(), d.tenant, holder("k1"), seize); !errors.As(err, &held) {
			t.Fatal(err)
		}

		// A process may know that the first holder has ended. It can then take over the lock if the lock still has the
		// revision that the HeldError named. Only one process can succeed.
		second, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), held.Revision)
		must(t, err)
		_, err = a.AcquireHost(t.Context(), d.tenant, holder("w3"), held.Revision)
		if !errors.As(err, &held) || held.Holder.Name != "w2" {
			t.Fatal(err)
		}
		higherToken(t, second.Token(), first.Token())
		// If the first holder was only paused, its renewal fails, and it learns that it lost the lock.
		renewed(t, first)
		receive(t, 5*time.Second, "the loss of the first holder's lease", first.Lost())
		wantError(t, first.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)

		must(t, second.Release(t.Context()))
		wantError(t, second.Check(), protocol.FailedPrecondition, protocol.ReasonLeaseLost)
		third, err := a.AcquireHost(t.Context(), d.tenant, holder("w3"), 0) // a released lock is free immediately
		must(t, err)
		higherToken(t, third.Token(), second.Token())
		must(t, third.Release(t.Context()))
		seized := uint64(0)
		seize = func(token uint64) error { seized = token; return nil }
		must(t, b.SeizeHost(t.Context(), d.tenant, holder("k1"), seize))
		higherToken(t, seized, third.Token())
	})
}

// higherToken checks that a lease's token is higher than that of the previous holder.
func higherToken(t testing.TB, token, previous uint64) {
	t.Helper()
	if token <= previous {
		t.Fatalf("the token is %d, although the previous holder had token %d", token, previous)
	}
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
					return fmt.Errorf("a holder that renews does not trust its lease: %v", err)
				}
				var held *jetstream.HeldError
				if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); !errors.As(err, &held) {
					return fmt.Errorf("the lock was taken from a holder that renews: %v", err)
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
		eventually.Holds(t, lockTTL, "the lease is renewed", func() bool {
			var held *jetstream.HeldError
			_, err := b.AcquireHost(t.Context(), d.tenant, holder("w2"), 0)
			return errors.As(err, &held) && held.Revision > l.Token()
		})
		cut := time.Now()
		p.partition()
		fenced := whenFenced(l)
		second, taken := takeWhenOver(t, b, d.tenant, holder("w2"), 3*lockTTL)
		at := receive(t, 5*time.Second, "the last time at which the lease was trusted", fenced)
		t.Logf("after the connection was cut, the lease was trusted for %s, and the lock was taken after %s",
			at.Sub(cut), taken.Sub(cut))
		if margin := taken.Sub(at); margin < lockTTL/4 {
			t.Fatalf("the first holder trusted its lease until only %s before the lock was taken", margin)
		}
		if second.Token() <= l.Token() {
			t.Fatalf("the token is %d, although the previous holder had token %d", second.Token(), l.Token())
		}
		p.heal()
		receive(t, 5*time.Second, "the loss of the lease", l.Lost())
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
		receive(t, 5*time.Second, "the loss of the lease", l.Lost())
	})
}

func TestARenewalWhoseAnswerWasLostIsNotALostLease(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		a, b := d.connTo(t, p.url()), d.opened(t)
		undisturbed(t, func(seen *looks, name string) error {
			l, err := a.AcquireHost(t.Context(), d.tenant+name, holder("w1"), 0)
			must(t, err)
			var taken error // set if the lock was taken from its holder
			last := uint64(0)
			// renewedAfter returns a condition: the lease has a newer revision, or was lost.
			renewedAfter := func(revision uint64) func() bool {
				return func() bool {
					seen.look()
					var held *jetstream.HeldError
					if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); !errors.As(err, &held) {
						taken = fmt.Errorf("the lock was taken from a holder that renews: %v", err)
						return true
					}
					last = held.Revision
					return last > revision
				}
			}
			p.mute.Store(true)
			renewed(t, l)
			if eventually.Holds(t, lockTTL, "the lease is renewed", renewedAfter(l.Token())); taken != nil {
				return taken
			}
			p.cut()
			p.heal()
			if eventually.Holds(t, lockTTL, "the lease is renewed again", renewedAfter(last)); taken != nil {
				return taken
			}
			eventually.Holds(t, lockTTL, "the lease is trusted again", func() bool { return l.Check() == nil })
			select {
			case <-l.Lost():
				return errors.New("the holder lost the lease to its own renewal")
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
	eventually.Holds(t, 2*lockTTL, "the lease is no longer trusted", func() bool { return first.Check() != nil })
	again, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	if again.Token() <= first.Token() {
		t.Fatalf("the token is %d, although the previous one was %d", again.Token(), first.Token())
	}
	fenced := whenFenced(again)
	_, taken := takeWhenOver(t, d.opened(t), d.tenant, holder("w2"), 2*lockTTL)
	if at := receive(t, 5*time.Second, "the last time at which the lease was trusted", fenced); !at.Before(taken) {
		t.Fatalf("the first holder trusted its lease until %s after the lock was taken", at.Sub(taken))
	}
}

// A renewal that finds this process's own value shows that an earlier renewal succeeded, but not when.
func TestARenewalThatFindsItsOwnValueDoesNotRestoreTrust(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LockTTL: time.Minute})
	c := d.opened(t)
	l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	_, err = c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0) // like a renewal whose answer was lost
	must(t, err)
	before := l.TrustedUntil()
	if trusted, err := l.Renew(t.Context()); err != nil || trusted || l.TrustedUntil() != before {
		t.Fatalf("the renewal extended the trust by %s, %v, %v; want no trust", l.TrustedUntil()-before, trusted, err)
	}
	if trusted, err := l.Renew(t.Context()); err != nil || !trusted || l.TrustedUntil() <= before {
		t.Fatalf("the next renewal does not make the lease trusted: %v, %v", trusted, err)
	}
}

// The renewal that makes the lease trusted again comes soon, not only after a sixth of the lease's life.
func TestARenewalWithoutTrustIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	const ttl = 18 * time.Second
	d := startServer(t, jetstream.Assets{LockTTL: ttl})
	c := d.opened(t)
	l, err := c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0)
	must(t, err)
	_, err = c.AcquireHost(t.Context(), d.tenant, holder("w1"), 0) // like a renewal whose answer was lost
	must(t, err)
	before, began := l.TrustedUntil(), time.Now()
	renewed(t, l)
	eventually.Holds(t, ttl*2/3, "the lease is trusted again", func() bool { return l.TrustedUntil() > before })
	if took := time.Since(began); took >= 2*(ttl/6) {
		t.Errorf("the lease was trusted again only after %s", took)
	}
}

// A process that stops during a renewal does not know the renewal's outcome.
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
			eventually.Holds(t, lockTTL, "the lease is renewed", func() bool {
				seen.look()
				var held *jetstream.HeldError
				_, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0)
				return errors.As(err, &held) && held.Revision > l.Token()
			})
			stop()
			p.heal()
			if err := l.Release(t.Context()); err != nil {
				return fmt.Errorf("could not release the lease: %v", err)
			}
			if _, err := b.AcquireHost(t.Context(), d.tenant+name, holder("w2"), 0); err != nil {
				return fmt.Errorf("could not acquire the lock after its release: %v", err)
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
			t.Fatalf("could not acquire the lock after the seizure: %v", err)
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
	eventually.Holds(t, 5*time.Second, "the second holder has the lock", func() bool {
		second, err := b.AcquireScheduler(t.Context(), holder("k2"))
		return err == nil && second.Token() > first.Token()
	})
}
