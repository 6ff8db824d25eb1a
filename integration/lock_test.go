package integration

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// refusedBy checks that a second worker exits and that its error names the holder of the host's lock.
func refusedBy(t *testing.T, second *fleet.Process, within time.Duration, holder string) {
	t.Helper()
	if err := second.AwaitExit(within); err == nil {
		t.Error("the second worker ended without an error")
	}
	log := second.Log()
	last := log[strings.LastIndex(strings.TrimSpace(log), "\n")+1:]
	if !strings.Contains(last, "held by") || !strings.Contains(last, holder) {
		t.Errorf("the second worker logged %q, which does not name %q", last, holder)
	}
}

// TestS11_ASecondWorkerOnAnEngineIsRefused starts second workers with the same directories and with other directories.
func TestS11_ASecondWorkerOnAnEngineIsRefused(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	first := f.Worker("first", fleet.Role{})
	same := f.Worker("second", fleet.Role{StateDir: first.Role.StateDir, NoWait: true})
	refusedBy(t, same, 15*time.Second, "first (process ") // half of the lease: the refusal comes at once
	other := f.Worker("third", fleet.Role{NoWait: true})
	refusedBy(t, other, 15*time.Second, "first (machine ")

	// The refusal does not affect the first worker. When the first worker is killed, its successor gets the host at
	// once.
	f.Create("a")
	first.Kill()
	started := time.Now()
	f.Worker("first", fleet.Role{})
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("the successor needed %s", took)
	} else {
		t.Logf("a killed worker's successor is ready after %s, with locks of 30 s", took.Round(time.Millisecond))
	}
	f.Judge()
}

// TestAWorkerNameBelongsToOneHost starts a second worker with the same name on another host. This happens if an
// operator copies a configuration.
func TestAWorkerNameBelongsToOneHost(t *testing.T) {
	t.Parallel()
	e := engines.Start(t, "name")
	f := fleet.Start(t, fleet.Options{Workers: -1}) // locks last 30 s: no step waits until a lock expires
	first := f.Worker("w1", fleet.Role{})
	s := f.Create("a")
	second := f.Worker("w1", fleet.Role{Engine: e.Host, StateDir: filepath.Join(f.Dir, "second"), NoWait: true})
	if err := second.AwaitExit(15 * time.Second); err == nil {
		t.Error("the second worker ended without an error")
	}
	if log := second.Log(); !strings.Contains(log, "worker name w1 is taken by host") {
		t.Errorf("the second worker logged %q", log)
	}
	if _, err := s.Exec(f.Context(time.Minute), protocol.ExecSpec{Command: []string{"true"}}); err != nil ||
		first.Exited() {
		t.Errorf("the first worker is running: %t, an exec: %v", !first.Exited(), err)
	}
	// The refused worker released the host's lock instead of letting it expire.
	started := time.Now()
	f.Worker("w2", fleet.Role{Engine: e.Host})
	if took := time.Since(started); took > 15*time.Second {
		t.Errorf("a worker with another name got the host only after %s", took)
	}
	f.Judge()
}

// TestAnotherWorkerTakesAHostOnlyAfterTheLease starts a worker with other directories, like a worker on another
// machine. That worker cannot know that the previous worker has died.
func TestAnotherWorkerTakesAHostOnlyAfterTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := fleet.Start(t, fleet.Options{Workers: -1, LockTTL: ttl})
	locks := f.WatchLocks()
	first := f.Worker("first", fleet.Role{})
	first.Kill()
	f.Worker("second", fleet.Role{})
	renewals := locks.Of("first")
	last := renewals[len(renewals)-1].Time
	f.Eventually(10*time.Second, "the new tenure is recorded", func() error {
		if len(locks.Of("second")) == 0 {
			return errors.New("nothing")
		}
		return nil
	})
	taken := locks.Of("second")[0].Time
	if taken.Sub(last) < ttl {
		t.Errorf("the host was taken %s after the last renewal, within a lease of %s", taken.Sub(last), ttl)
	}
	if taken.Sub(last) > ttl+10*time.Second {
		t.Errorf("the host was taken only %s after the last renewal", taken.Sub(last))
	}
	t.Logf("lock taken %s after the last renewal, lease %s", taken.Sub(last).Round(time.Millisecond), ttl)
	f.Judge()
}

// hostFleet has one worker, with a recording proxy in front of its engine. After a call of the method obstruct, the
// engine refuses new containers, so the worker never stops trying to create them.
type hostFleet struct {
	*fleet.Fleet
	ttl    time.Duration
	locks  *fleet.Locks
	engine *dockertest.Proxy
	w      *fleet.Process
	ready  *sdk.Sandbox // a ready sandbox
}

func startHost(t *testing.T, ttl time.Duration, role fleet.Role, link bool) (*hostFleet, *fleet.Link) {
	t.Helper()
	proxy, address := dockertest.StartProxy(t, dockertest.Socket(t))
	servers := 0
	if link {
		servers = 1 // the link leads to one server
	}
	f := fleet.Start(t, fleet.Options{Servers: servers, Workers: -1, LockTTL: ttl,
		Timing: coordinator.Timing{Suspect: time.Second, Seize: 500 * time.Millisecond}})
	h := &hostFleet{Fleet: f, ttl: ttl, locks: f.WatchLocks(), engine: proxy}
	role.Engine = address
	var l *fleet.Link
	if link {
		l = f.Link()
		role.NATS = l.URL()
	}
	h.w = f.Worker("w1", role)
	h.ready = f.Create("ready")
	return h, l
}

// obstruct makes the engine refuse new containers.
func (h *hostFleet) obstruct() {
	h.engine.Inject(func(r *http.Request) dockertest.Fault {
		return dockertest.Fault{Drop: strings.HasSuffix(r.URL.Path, "/containers/create")}
	})
}

// submit creates sandboxes and waits until the worker has tried to create each container.
func (h *hostFleet) submit(prefix string, n int) (ids []string) {
	h.TB.Helper()
	h.engine.Reset()
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		if _, err := h.Client.Create(h.Context(time.Minute), h.Spec(), sdk.WithID(id),
			sdk.WithWait(false)); err != nil {
			h.TB.Fatal(err)
		}
		ids = append(ids, id)
	}
	h.Eventually(20*time.Second, "the worker tries", func() error {
		for _, id := range ids {
			if len(h.about(id, time.Time{})) == 0 {
				return fmt.Errorf("nothing about %s yet", id)
			}
		}
		return nil
	})
	return ids
}

// about lists the changing requests that reached the engine after the given time and that contain the name of the
// sandbox's container or network.
func (h *hostFleet) about(id string, from time.Time) (found []dockertest.Request) {
	for _, r := range h.engine.Mutations() {
		if r.Time.After(from) && strings.Contains(r.Path+"?"+r.Query, "default."+id) {
			found = append(found, r)
		}
	}
	return found
}

// judge checks that each changing request arrived while no other worker could hold the lock.
func (h *hostFleet) judge() {
	h.TB.Helper()
	held := 0
	for _, r := range h.engine.Mutations() {
		if !h.locks.Held("w1", r.Time, h.ttl) {
			h.TB.Errorf("%s: %s %s without the lock", r.Time.Format(time.StampMilli), r.Method, r.Path)
			continue
		}
		held++
	}
	if held < 5 {
		h.TB.Errorf("only %d changing requests: the test proves nothing", held)
	}
	if h.TB.Failed() {
		for _, l := range h.locks.Of("w1") {
			h.TB.Logf("%s: lock revision %d of %s", l.Time.Format(time.StampMilli), l.Revision, l.Holder.Instance)
		}
	}
}

// TestP4_APausedWorkerChangesNothingWithAStaleLock pauses the worker's process for half of its lease, for the whole
// lease and for three times the lease. During each pause the worker has pending work and a request in flight.
func TestP4_APausedWorkerChangesNothingWithAStaleLock(t *testing.T) {
	t.Parallel()
	h, _ := startHost(t, 4*time.Second, fleet.Role{}, false)
	for i, times := range []float64{0.5, 1, 3} {
		h.Run(t, fmt.Sprintf("%gTimesTheLease", times), func(t *testing.T) {
			h.obstruct()
			ids := h.submit(fmt.Sprintf("p%d-", i), 3)
			h.w.Pause()
			x, err := h.ready.Start(h.Context(time.Minute),
				protocol.ExecSpec{Command: []string{"sh", "-c", "echo x >> /tmp/runs"}})
			if err != nil {
				t.Fatal(err)
			}
			pause := time.NewTimer(time.Duration(times * float64(h.ttl)))
			<-pause.C
			h.w.Continue()
			if _, err := x.Wait(h.Context(20 * time.Second)); err != nil {
				t.Errorf("the exec: %v", err)
			}
			h.engine.Inject(nil)
			for _, id := range ids {
				s := h.Client.Sandbox(id)
				h.Eventually(30*time.Second, "the worker resumes its work", func() error {
					if err := s.Refresh(h.Context(5 * time.Second)); err != nil {
						return err
					}
					if got := s.Info().State; got != protocol.StateReady {
						return fmt.Errorf("%s is %s", id, got)
					}
					return nil
				})
				if err := s.Delete(h.Context(20 * time.Second)); err != nil {
					t.Error(err)
				}
			}
			h.judge()
		})
	}
	runs, err := h.ready.Exec(h.Context(10*time.Second), protocol.ExecSpec{Command: []string{"cat", "/tmp/runs"}})
	if err != nil || string(runs.Stdout) != "x\nx\nx\n" {
		t.Errorf("three execs ran like this: %q, %v", runs.Stdout, err)
	}
	h.startedUnderTheLock()
	h.Judge()
}

// startedUnderTheLock checks that each exec was started by the holder of the lock.
func (h *hostFleet) startedUnderTheLock() {
	h.TB.Helper()
	for _, e := range h.History("ready").Events {
		if e.Kind == protocol.ExecStarted && !h.locks.Held("w1", e.Time, h.ttl) {
			h.TB.Errorf("event %d: %s at %s, without the lock", e.Sequence, e.Kind, e.Time.Format(time.StampMilli))
		}
	}
}

// TestP4_AWorkerCutOffFromNATSChangesNothing cuts the only link between a worker and the log. The link stays cut until
// another host has taken the worker's pending sandboxes.
func TestP4_AWorkerCutOffFromNATSChangesNothing(t *testing.T) {
	t.Parallel()
	other := engines.Start(t, "other")
	engines.LoadImage(t, other, fleet.Image)
	h, link := startHost(t, 4*time.Second, fleet.Role{}, true)
	h.obstruct()
	ids := h.submit("p", 3)
	x, err := h.ready.Start(h.Context(2*time.Minute),
		protocol.ExecSpec{Command: []string{"sh", "-c",
			"i=0; while [ ! -e /tmp/enough ]; do echo $i; i=$((i+1)); sleep 0.1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually(10*time.Second, "the exec runs", func() error {
		n := 0
		for range x.Output(h.Context(5 * time.Second)) {
			n++
		}
		if n == 0 {
			return errors.New("it has printed nothing")
		}
		return nil
	})
	cut := time.Now()
	link.Cut()
	during, err := h.ready.Start(h.Context(2*time.Minute), protocol.ExecSpec{Command: []string{"true"}})
	if err != nil {
		t.Fatalf("submitting an exec for an unreachable worker failed: %v", err)
	}
	h.Worker("w2", fleet.Role{Engine: other.Host})
	reassigned := map[string]time.Time{}
	for _, id := range ids {
		s := h.Client.Sandbox(id)
		h.Eventually(30*time.Second, "the other host takes the pending sandboxes", func() error {
			err := s.Refresh(h.Context(5 * time.Second))
			if err == nil &&
				(s.Info().State != protocol.StateReady || s.Info().Worker != "w2" || s.Info().Generation != 2) {
				err = fmt.Errorf("%s is %s on %s, generation %d", id, s.Info().State, s.Info().Worker,
					s.Info().Generation)
			}
			return err
		})
		for _, e := range h.History(id).Events {
			if e.Kind == protocol.SandboxAssigned && e.Details.Worker == "w2" {
				reassigned[id] = e.Time
			}
		}
	}
	renewals := h.locks.Of("w1")
	last := renewals[len(renewals)-1].Time
	for id, at := range reassigned {
		if at.Sub(last) < h.ttl {
			t.Errorf("%s was given away %s after the last renewal, within the lease of %s", id, at.Sub(last), h.ttl)
		}
	}
	t.Logf("pending sandboxes moved to another host %s after the cut",
		reassigned[ids[0]].Sub(cut).Round(time.Millisecond))
	if err := h.ready.Refresh(h.Context(5 * time.Second)); err != nil || !h.ready.Info().Unreachable ||
		h.ready.Info().State != protocol.StateReady {
		t.Errorf("the ready sandbox is %+v, %v; want ready, unreachable", h.ready.Info(), err)
	}
	h.engine.Inject(nil) // from now on the engine accepts creates: only the lost lock stops the worker

	mended := time.Now()
	link.Mend()
	if _, err := during.Wait(h.Context(40 * time.Second)); err != nil {
		t.Errorf("the exec that was accepted during the cut: %v", err)
	}
	t.Logf("the worker served an exec %s after the link was mended", time.Since(mended).Round(time.Millisecond))
	h.Eventually(20*time.Second, "the reassigned sandboxes are gone from the first host", func() error {
		for _, o := range h.Objects("") {
			if !strings.HasSuffix(o, ".ready") {
				return fmt.Errorf("left: %s", o)
			}
		}
		return nil
	})
	for _, id := range ids {
		for _, r := range h.about(id, reassigned[id]) {
			if r.Method != http.MethodDelete {
				t.Errorf("%s %s after %s was given to another worker", r.Method, r.Path, id)
			}
		}
		if err := h.Client.Sandbox(id).Delete(h.Context(20 * time.Second)); err != nil {
			t.Error(err)
		}
	}
	h.judge()
	h.startedUnderTheLock()
	// A late heartbeat makes the host suspect until the next heartbeat.
	h.Eventually(10*time.Second, "the sandbox is reachable after the cut", func() error {
		if err := h.ready.Refresh(h.Context(5 * time.Second)); err != nil || h.ready.Info().Unreachable {
			return fmt.Errorf("%+v, %v", h.ready.Info(), err)
		}
		return nil
	})
	if _, err := h.ready.Exec(h.Context(10*time.Second),
		protocol.ExecSpec{Command: []string{"touch", "/tmp/enough"}}); err != nil {
		t.Fatal(err)
	}
	r, err := x.Wait(h.Context(20 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, r, 0)
	var want strings.Builder
	for i := 0; want.Len() < len(r.Stdout); i++ {
		fmt.Fprintln(&want, i)
	}
	same(t, "the output of the exec that ran all the time", r.Stdout, []byte(want.String()))
	h.Judge()
}
