package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// acceptMany calls Do concurrently for n execs through each journal.
func acceptMany(t testing.TB, journals []*jetstream.Journal, prefix string, n int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var wg sync.WaitGroup
	for i := range n {
		for w, j := range journals {
			wg.Go(func() {
				events, err := j.Do(ctx, acceptExec(fmt.Sprintf("%s%d-%d", prefix, w, i)))
				if err != nil || len(events) != 1 || events[0].Record == 0 || events[0].Sequence == 0 {
					t.Errorf("writer %d, exec %d: Do returned %+v, %v", w, i, events, err)
				}
			})
		}
	}
	wg.Wait()
}

func TestTwoJournalsUnderLoadWriteOneHistoryWithoutGapOrRepeat(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		const each, rounds = 60, 3
		k, w := d.opened(t), d.opened(t)
		readySandbox(t, k, d.tenant, "s1")
		journals := []*jetstream.Journal{journal(k, d.tenant, "s1", "k1"), journal(w, d.tenant, "s1", "w1")}
		// Each journal receives the other's batches while it decides, as the journals of coordinators and workers do.
		for i, c := range []*jetstream.Conn{k, w} {
			stop, err := c.Live(d.tenant, "s1", func(b *protocol.Batch) { journals[i].Receive(b) })
			must(t, err)
			t.Cleanup(stop)
		}
		for r := range rounds {
			acceptMany(t, journals, fmt.Sprintf("r%d-", r), each)
		}
		state, batches := readHistory(t, k, d.tenant, "s1")
		events := uint64(3 + 2*each*rounds)
		if state.Sandbox.Sequence != events || state.Sandbox.TotalExecs != int(events-3) {
			t.Fatalf("%d events of %d execs, want %d events", state.Sandbox.Sequence, state.Sandbox.TotalExecs, events)
		}
		if len(batches) > int(events)/2 {
			t.Fatalf("%d messages for %d events: nothing is grouped", len(batches), events)
		}
		for _, j := range journals {
			must(t, j.Refresh(t.Context()))
			folded, record := j.State()
			same(t, "the journal's fold and the log's", folded, state)
			if record != batches[len(batches)-1].Record {
				t.Fatalf("the journal is folded up to record %d, want %d", record, batches[len(batches)-1].Record)
			}
		}
	})
}

func TestARefusalAffectsOnlyItsOwnDecision(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		readySandbox(t, c, d.tenant, "s1")
		j := journal(c, d.tenant, "s1", "k1")
		refused := errors.New("no")
		ctx := context.WithoutCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				_, err := j.Do(ctx, acceptExec(fmt.Sprintf("x%d", i)))
				if err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				refuse := func(*protocol.State, time.Time) ([]protocol.Event, error) { return nil, refused }
				if _, err := j.Do(ctx, refuse); err != refused {
					t.Error(err)
				}
			})
			wg.Go(func() { // this event is not possible in the sandbox's state
				_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
					return []protocol.Event{{Kind: protocol.SandboxStopped}}, nil
				})
				if protocol.CodeOf(err) != protocol.FailedPrecondition {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if state, _ := readHistory(t, c, d.tenant, "s1"); state.Sandbox.TotalExecs != 30 {
			t.Fatalf("the history has %d execs, want 30", state.Sandbox.TotalExecs)
		}
	})
}

func TestADecisionIsRepeatedWhenAnotherWriterWasFirst(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		readySandbox(t, a, d.tenant, "s1")
		ja, jb := journal(a, d.tenant, "s1", "k1"), journal(b, d.tenant, "s1", "k2")
		must(t, ja.Refresh(t.Context()))
		must(t, jb.Refresh(t.Context()))
		_, err := ja.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
			return []protocol.Event{{Kind: protocol.SandboxStopRequested, Request: "stop"}}, nil
		})
		must(t, err)
		asked := 0
		_, err = jb.Do(t.Context(), func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
			asked++
			if s.Sandbox.Desired == protocol.StateStopped {
				return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "too late")
			}
			return acceptExec("x1")(s, now)
		})
		wantError(t, err, protocol.FailedPrecondition, protocol.ReasonSandboxStopping)
		if asked < 2 {
			t.Fatalf("the decision was called %d times, want at least 2", asked)
		}
	})
}

// A batch is received after a decision was made and before the decision is appended. The decision's event numbers are
// then already used.
func TestABatchReceivedWhileDecidingMakesTheAppendLose(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		readySandbox(t, a, d.tenant, "s1")
		j := journal(a, d.tenant, "s1", "k1")
		must(t, j.Refresh(t.Context()))
		asked := 0
		events, err := j.Do(t.Context(), func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
			if asked++; asked == 1 {
				_, err := journal(b, d.tenant, "s1", "w1").Do(t.Context(), acceptExec("other"))
				must(t, err)
				_, batches := readHistory(t, b, d.tenant, "s1")
				j.Receive(batches[len(batches)-1])
			}
			return acceptExec("mine")(s, now)
		})
		must(t, err)
		if asked != 2 || len(events) != 1 || events[0].Sequence != 5 {
			t.Fatalf("the decision was called %d times and appended %+v; want 2 calls and event 5", asked, events)
		}
		state, _ := readHistory(t, b, d.tenant, "s1")
		folded, _ := j.State()
		same(t, "the journal's fold and the log's", folded, state)
	})
}

func TestARefusalIsDecidedOnTheNewestStateOnly(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b := d.opened(t), d.opened(t)
		behind := journal(b, d.tenant, "s1", "k2")
		must(t, behind.Refresh(t.Context())) // before the sandbox exists
		readySandbox(t, a, d.tenant, "s1")
		_, err := behind.Do(t.Context(), func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
			if s.Sandbox.State != protocol.StateReady {
				return nil, notReady(s)
			}
			return acceptExec("x1")(s, now)
		})
		must(t, err)

		// Every decision must see the newest state, even one that appends no events. This decision stops the sandbox,
		// which another writer has resumed. The journal has not received the resume yet.
		stop := func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			if s.Sandbox.State == protocol.StateStopped {
				return nil, nil
			}
			return []protocol.Event{{Kind: protocol.SandboxStopRequested}}, nil
		}
		one := journal(a, d.tenant, "s1", "k1")
		for _, kinds := range [][]protocol.Event{
			{{Kind: protocol.ExecFailed, Exec: &protocol.ExecDetails{ID: "x1"}}},
			{{Kind: protocol.SandboxStopRequested}, {Kind: protocol.SandboxStopped}},
		} {
			_, err := one.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) { return kinds, nil })
			must(t, err)
		}
		must(t, behind.Refresh(t.Context()))
		_, err = one.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
			return []protocol.Event{
				{Kind: protocol.SandboxResumeRequested},
				{
					Kind:    protocol.SandboxAssigned,
					Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1},
				},
				{Kind: protocol.SandboxReady},
			}, nil
		})
		must(t, err)
		events, err := behind.Do(t.Context(), stop)
		if err != nil || len(events) != 1 {
			t.Fatalf("the stop appended %+v, %v", events, err)
		}
	})
}

func notReady(s *protocol.State) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady,
		"the sandbox is %q", s.Sandbox.State)
}

// A follower calls Fresh each time it has handled everything that it received, even if the log has more.
func TestARefusalIsDecidedOnTheNewestStateEvenIfAFollowerCallsFresh(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	a, b := d.opened(t), d.opened(t)
	for i := range 50 {
		sandbox := fmt.Sprintf("s%d", i)
		behind := journal(b, d.tenant, sandbox, "k2")
		must(t, behind.Refresh(t.Context())) // before the sandbox exists
		readySandbox(t, a, d.tenant, sandbox)
		var over atomic.Bool
		var following sync.WaitGroup
		for range 4 {
			following.Go(func() {
				for !over.Load() {
					behind.Fresh()
				}
			})
		}
		_, err := behind.Do(t.Context(), func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
			if s.Sandbox.State != protocol.StateReady {
				return nil, notReady(s)
			}
			return acceptExec("x1")(s, now)
		})
		over.Store(true)
		following.Wait()
		must(t, err)
	}
}

func TestDoReturnsWhenItsContextEndsAndTheAppendContinues(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	c := d.connTo(t, p.url())
	readySandbox(t, c, d.tenant, "s1")
	j := journal(c, d.tenant, "s1", "k1")
	must(t, j.Refresh(t.Context()))
	p.mute.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := j.Do(ctx, acceptExec("x1"))
		done <- err
	}()
	other := d.opened(t)
	eventually.Holds(t, 5*time.Second, "the event is in the log", func() bool {
		s, _ := readHistory(t, other, d.tenant, "s1")
		return s.Execs["x1"] != nil
	})
	cancelled := time.Now()
	cancel()
	wantError(t, receive(t, 5*time.Second, "the end of Do", done), protocol.Cancelled, "")
	if took := time.Since(cancelled); took > time.Second {
		t.Fatalf("Do returned %s after its context ended", took)
	}
	p.mute.Store(false)
	_, err := j.Do(t.Context(), acceptExec("x2"))
	must(t, err)
	if s, _ := readHistory(t, other, d.tenant, "s1"); s.Sandbox.TotalExecs != 2 {
		t.Fatalf("the history has %d execs, want 2", s.Sandbox.TotalExecs)
	}
}

// The connection breaks after the append was stored: its answer is lost.
func TestAnAppendWhoseAnswerWasLostIsInTheLogOnce(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		p := throughProxy(t, d)
		c, other := d.connTo(t, p.url()), d.opened(t)
		must(t, c.Open(t.Context()))
		readySandbox(t, c, d.tenant, "s1")
		j := journal(c, d.tenant, "s1", "k1")
		for i := range 3 {
			id := fmt.Sprintf("x%d", i)
			must(t, j.Refresh(t.Context())) // so that the first attempt to append is stored
			p.mute.Store(true)
			began, done := time.Now(), make(chan error, 1)
			go func() {
				events, err := j.Do(t.Context(), acceptExec(id))
				if err == nil && len(events) != 1 {
					err = fmt.Errorf("Do returned %d events, want 1", len(events))
				}
				done <- err
			}()
			eventually.Holds(t, 5*time.Second, "the event is in the log", func() bool {
				s, _ := readHistory(t, other, d.tenant, "s1")
				return s.Execs[id] != nil
			})
			if i == 1 { // another writer appends before the journal searches for its own batch
				_, err := journal(other, d.tenant, "s1", "k2").Do(t.Context(), acceptExec("between"))
				must(t, err)
			}
			p.cut()
			p.heal()
			// Do must not wait until the attempt times out: the answer cannot arrive any more.
			must(t, receive(t, 10*time.Second, "the end of Do", done))
			if took := time.Since(began); took >= jetstream.AppendTry {
				t.Fatalf("Do took %s, which is the time limit of an attempt or more", took)
			}
		}
		state, batches := readHistory(t, other, d.tenant, "s1")
		if state.Sandbox.TotalExecs != 4 || len(batches) != 5 {
			t.Fatalf("the history has %d execs in %d messages, want 4 in 5", state.Sandbox.TotalExecs, len(batches))
		}
	})
}

// load calls Do in several goroutines until it is stopped. It records which execs were confirmed and how long the
// longest call took.
type load struct {
	stop      atomic.Bool
	wg        sync.WaitGroup
	mu        sync.Mutex
	confirmed map[string]bool
	worst     time.Duration
	failed    []error
}

func startLoad(ctx context.Context, journals []*jetstream.Journal, parallel int) *load {
	l := &load{confirmed: map[string]bool{}}
	for w, j := range journals {
		for g := range parallel {
			l.wg.Go(func() {
				for i := 0; !l.stop.Load(); i++ {
					id := fmt.Sprintf("x%d-%d-%d", w, g, i)
					start := time.Now()
					_, err := j.Do(ctx, acceptExec(id))
					l.note(id, time.Since(start), err)
				}
			})
		}
	}
	return l
}

func (l *load) note(id string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worst = max(l.worst, took)
	if err != nil {
		l.failed = append(l.failed, err)
		return
	}
	l.confirmed[id] = true
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.confirmed)
}

// The method end stops the load and checks that the log has every confirmed exec.
func (l *load) end(t *testing.T, c *jetstream.Conn, tenant, sandbox string) {
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	state, batches := readHistory(t, c, tenant, sandbox)
	for id := range l.confirmed {
		if state.Execs[id] == nil {
			t.Fatalf("exec %s was confirmed but is not in the log", id)
		}
	}
	if state.Sandbox.TotalExecs != len(l.confirmed) {
		t.Fatalf("the log has %d execs, but %d were confirmed", state.Sandbox.TotalExecs, len(l.confirmed))
	}
	t.Logf("%d events in %d messages, longest call %s", state.Sandbox.Sequence, len(batches), l.worst)
	for _, err := range l.failed {
		t.Errorf("a call failed: %v", err)
	}
}

func TestARestartOfTheServerUnderLoadLosesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	k, w := d.opened(t), d.opened(t)
	readySandbox(t, k, d.tenant, "s1")
	l := startLoad(
		context.WithoutCancel(t.Context()),
		[]*jetstream.Journal{journal(k, d.tenant, "s1", "k1"), journal(w, d.tenant, "s1", "w1")},
		8,
	)
	for range 3 {
		before := l.count()
		eventually.Holds(t, 10*time.Second, "the load makes progress before the restart", func() bool {
			return l.count() > before+100
		})
		d.restart(t)
	}
	before := l.count()
	eventually.Holds(t, 10*time.Second, "the load makes progress after the restart", func() bool {
		return l.count() > before+100
	})
	l.end(t, d.opened(t), d.tenant, "s1")
	if l.worst > 5*time.Second {
		t.Errorf("the longest call took %s, want at most 5 s", l.worst)
	}
}

func TestALossOfTheStreamsLeaderUnderLoadLosesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	k, w := d.opened(t), d.opened(t)
	readySandbox(t, k, d.tenant, "s1")
	l := startLoad(
		context.WithoutCancel(t.Context()),
		[]*jetstream.Journal{journal(k, d.tenant, "s1", "k1"), journal(w, d.tenant, "s1", "w1")},
		8,
	)
	eventually.Holds(t, 10*time.Second, "the load makes progress before the loss", func() bool { return l.count() > 200 })
	lost := -1
	for i, s := range d.servers {
		if s.JetStreamIsStreamLeader("$G", protocol.StreamEvents) {
			lost = i
		}
	}
	if lost < 0 {
		t.Fatal("the stream has no leader")
	}
	d.servers[lost].Stop()
	before := l.count()
	eventually.Holds(t, 25*time.Second, "the load makes progress after the loss", func() bool {
		return l.count() > before+200
	})
	l.end(t, k, d.tenant, "s1")
	if l.worst > 15*time.Second {
		t.Errorf("the longest call took %s, want at most 15 s", l.worst)
	}
}

// A defect in one decision fails only that decision; the journal and the process continue.
func TestAPanickingDecisionIsRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s")
	j := journal(c, d.tenant, "s", "k1")
	_, err := j.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) { panic("a defect") })
	wantError(t, err, protocol.Internal, "")
	events, err := j.Do(t.Context(), acceptExec("x"))
	must(t, err)
	if len(events) != 1 {
		t.Fatalf("the next decision appended %v, want one event", events)
	}
}
