package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/evidence"
	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The cluster has two coordinators, three NATS servers and two hosts. Each host is a real engine in its own network
// namespace.
func TestAClusterOfHosts(t *testing.T) {
	t.Parallel()
	var hosts [2]*engines.Engine
	for i := range hosts {
		hosts[i] = engines.Start(t, fmt.Sprintf("host%d", i+1))
		engines.LoadImage(t, hosts[i], fleet.Image)
	}
	t.Run("a worker is killed for good", func(t *testing.T) { workerLost(t, hosts) })
	t.Run("the scheduling coordinator is killed", func(t *testing.T) { schedulerLost(t, hosts) })
	t.Run("NATS servers are killed under load", func(t *testing.T) { serversLost(t, hosts) })
}

// The short form of `make test-cluster`: one sandbox uses most features of a fleet with credentials and three servers.
func TestAFleetWithThreeServersWorks(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Servers: 3})
	ctx := f.Context(3 * time.Minute)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "hello"), "hello\n", 0o644, time.Now())
	copied, err := f.Client.Upload(ctx, dir, "/in")
	if err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Copies = []protocol.Copy{copied}
	spec.RequiredServices = protocol.Services{"db": {Image: spec.Image, Command: []string{"sleep", "1000"}}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /in/hello")); got != "hello\n" {
		t.Errorf("the uploaded file has %q", got)
	}
	const size = 1 << 20 // more output than fits into an event
	if got := len(mustExec(ctx, t, s, script(fmt.Sprintf("head -c %d /dev/zero", size)))); got != size {
		t.Errorf("an exec prints %d bytes, want %d", got, size)
	}
	running, err := s.Start(ctx, script("echo begins; sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	for range running.Output(ctx, sdk.WithFollow(true)) {
		break // the exec is running now
	}
	w := f.Processes("worker")[0]
	w.Kill()
	w.Restart()
	if err := running.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := running.Wait(ctx); protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("the cancelled exec: %v, want cancelled", err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	e, err := s.Evidence(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r := evidence.Check(e); os.Getenv(access.Variable) == "" && !r.Valid {
		t.Errorf("the history is not proven: %q, %d refused", r.Problems, r.Refused)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Judge()
}

// onHost waits until a sandbox is ready and fails the test unless it is on the worker.
func onHost(ctx context.Context, t *testing.T, s *sdk.Sandbox, worker string) {
	t.Helper()
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.Info().Worker; got != worker {
		t.Errorf("%s is on %s, want %s", s.ID(), got, worker)
	}
}

func workerLost(t *testing.T, hosts [2]*engines.Engine) {
	const lockTTL = 9 * time.Second // shorter than the default: a silent host becomes suspect sooner
	f := fleet.Start(t, fleet.Options{Servers: 3, Coordinators: 2, Workers: -1, LockTTL: lockTTL})
	ctx := f.Context(4 * time.Minute)
	locks := f.WatchLocks()
	w1 := f.Worker("w1", fleet.Role{Engine: hosts[0].Host, CrashAt: "after-container-create", CrashAfter: 3,
		Reconcile: time.Second})
	one, two := f.Create("one"), f.Create("two")
	onHost(ctx, t, one, "w1")
	onHost(ctx, t, two, "w1")
	w2 := f.Worker("w2", fleet.Role{Engine: hosts[1].Host})
	knownToAll(ctx, f, "w2")
	onHost(ctx, t, f.Create("three"), "w2")
	onHost(ctx, t, f.Create("four"), "w2")
	x, err := one.Start(ctx,
		script("i=0; while [ ! -e /tmp/enough ]; do echo $i; i=$((i+1)); usleep 100000; done; exit 6"))
	if err != nil {
		t.Fatal(err)
	}
	for range x.Output(ctx, sdk.WithFollow(true)) {
		break // the exec is running now
	}
	// Both hosts are equally full. The scheduler chooses the first host, and the worker of that host dies during the
	// create.
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("five"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	w1.AwaitKilled(time.Minute)
	died := time.Now()
	f.Eventually(15*time.Second, "the ready sandboxes are ready and unreachable", func() error {
		for _, id := range []string{"one", "two"} {
			s, err := f.Client.Get(ctx, id)
			if err != nil {
				return err
			}
			if i := s.Info(); !i.Unreachable || i.State != protocol.StateReady {
				return fmt.Errorf("%s is %s, unreachable %v", id, i.State, i.Unreachable)
			}
		}
		return nil
	})
	shown := time.Since(died)
	onHost(ctx, t, s, "w2")
	var assigned []protocol.Event
	for _, e := range history(ctx, t, f.Client, "five") {
		if e.Kind == protocol.SandboxAssigned {
			assigned = append(assigned, e)
		}
	}
	if len(assigned) != 2 {
		t.Fatalf("the sandbox was assigned %d times", len(assigned))
	}
	renewals := locks.Of("w1")
	after := assigned[1].Time.Sub(renewals[len(renewals)-1].Time)
	t.Logf("lease %s: shown unreachable %s after the worker's death, reassigned %s after the last renewal", lockTTL,
		shown.Round(time.Millisecond), after.Round(time.Millisecond))
	if after < lockTTL || after > lockTTL+15*time.Second {
		t.Errorf("reassigned %s after the last renewal: before the lease ended, or long after", after)
	}
	if made := f.Objects(hosts[0].Host); !strings.Contains(strings.Join(made, " "), ".five") {
		t.Errorf("the dead worker had created nothing, so the test shows no removal: %q", made)
	}

	w1.Restart()
	for _, s := range []*sdk.Sandbox{one, two} {
		f.Eventually(10*time.Second, s.ID()+" is reachable again", func() error {
			if err := s.Refresh(ctx); err != nil || s.Info().Unreachable {
				return fmt.Errorf("unreachable %v: %v", s.Info().Unreachable, err)
			}
			return nil
		})
		mustExec(ctx, t, s, script("touch /tmp/enough"))
	}
	r, err := x.Wait(ctx)
	if err != nil || code(r) != "6" {
		t.Errorf("the exec that kept running: %v, exit code %s", err, code(r))
	}
	for i, line := range strings.Fields(string(r.Stdout)) {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d of its output is %s", i, line)
		}
	}
	f.Eventually(10*time.Second, "the unfinished container is removed", func() error {
		for _, o := range f.Objects(hosts[0].Host) {
			if strings.HasSuffix(o, ".five") {
				return errors.New("still on the engine: " + o)
			}
		}
		return nil
	})
	mustExec(ctx, t, s, script("true"))
	if n := len(f.Directories(w2)); n != 3 {
		t.Errorf("host 2 has %d sandbox directories, want 3", n)
	}
	f.Judge()
}

// knownToAll waits until every coordinator lists a worker's host as ready. Any coordinator may answer a request.
func knownToAll(ctx context.Context, f *fleet.Fleet, worker string) {
	f.TB.Helper()
	f.Eventually(30*time.Second, "each coordinator knows "+worker, func() error {
		for range 20 {
			hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
			if err != nil {
				return err
			}
			ready := func(h *protocol.Host) bool { return h.Worker == worker && h.State == protocol.HostReady }
			if !slices.ContainsFunc(hosts, ready) {
				return errors.New("a coordinator does not know it")
			}
		}
		return nil
	})
}

// scheduler returns the running coordinator that last took the scheduler's lock.
func scheduler(f *fleet.Fleet, coordinators ...*fleet.Process) (leader *fleet.Process) {
	f.TB.Helper()
	f.Eventually(20*time.Second, "a coordinator schedules", func() error {
		for _, c := range coordinators {
			if !c.Exited() &&
				strings.LastIndex(c.Log(), "is now the leader") > strings.LastIndex(c.Log(),
					"is no longer the leader") {
				leader = c
				return nil
			}
		}
		return errors.New("none does")
	})
	return leader
}

func schedulerLost(t *testing.T, hosts [2]*engines.Engine) {
	f := fleet.Start(t, fleet.Options{Servers: 3, Coordinators: -1, Workers: -1})
	c1 := f.Coordinator("c1", fleet.Role{})
	c2 := f.Coordinator("c2", fleet.Role{})
	f.Connect()
	ctx := f.Context(2 * time.Minute)
	f.Worker("w1", fleet.Role{Engine: hosts[0].Host})
	f.Worker("w2", fleet.Role{Engine: hosts[1].Host})
	mustExec(ctx, t, f.Create("before"), script("true"))
	scheduler(f, c1, c2).Kill()
	died := time.Now()
	s := f.Create("after") // returns when the sandbox is ready, so the other coordinator has placed it
	took := time.Since(died)
	t.Logf("the next sandbox was ready %s after the scheduling coordinator was killed", took.Round(time.Millisecond))
	assigned := find(t, history(ctx, t, f.Client, "after"), protocol.SandboxAssigned)
	if after := assigned.Time.Sub(died); after > 15*time.Second { // the lock expires 6 s after its last renewal
		t.Errorf("the other coordinator scheduled %s after the death", after)
	}
	mustExec(ctx, t, s, script("true"))
	f.Judge()
}

// serversLost kills a follower and then the leader of the event log while eight clients send requests.
func serversLost(t *testing.T, hosts [2]*engines.Engine) {
	f := fleet.Start(t, fleet.Options{Servers: 3, Coordinators: 2, Workers: -1}) // leases last 30 s, the default
	ctx := f.Context(3 * time.Minute)
	workers := []*fleet.Process{f.Worker("w1", fleet.Role{Engine: hosts[0].Host}),
		f.Worker("w2", fleet.Role{Engine: hosts[1].Host})}
	for _, w := range workers {
		knownToAll(ctx, f, w.Name)
	}
	boxes := []*sdk.Sandbox{f.Create("s1"), f.Create("s2")}
	tokens := leases(ctx, t, f)

	working, enough := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var done, creates atomic.Int64
	var stall stalls
	ran := make([]atomic.Int64, len(boxes))
	for client := range 8 {
		wg.Go(func() {
			c, err := sdk.Connect(ctx, f.Options(sdk.Options{Name: fmt.Sprintf("client %d", client)}))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for n := 0; working.Err() == nil; n++ {
				begin := time.Now()
				box := client % len(boxes)
				if client >= 6 { // two of the eight clients create and delete sandboxes
					id := fmt.Sprintf("c%d-%d", client, n)
					s, err := c.Create(ctx, f.Spec(), sdk.WithID(id))
					if err == nil {
						stall.ended(begin)
						begin = time.Now()
						err = s.Delete(ctx)
					}
					if err != nil {
						t.Errorf("create and delete of %s: %v", id, err)
						return
					}
					creates.Add(1)
				} else {
					r, err := c.Sandbox(boxes[box].ID()).Exec(ctx, script("echo x >> /tmp/runs; echo out"))
					if err != nil || code(r) != "0" || string(r.Stdout) != "out\n" {
						t.Errorf("an exec of client %d: %v, exit code %s", client, err, code(r))
						return
					}
					ran[box].Add(1)
				}
				stall.ended(begin)
				done.Add(1)
			}
		})
	}
	work := func(n int64) {
		t.Helper()
		from := done.Load()
		f.Eventually(60*time.Second, "the clients continue", func() error {
			if more := done.Load() - from; more < n {
				return fmt.Errorf("%d of %d calls", more, n)
			}
			return nil
		})
	}
	work(100)
	calm := stall.worst()
	for _, which := range []string{"follower", "leader"} {
		stall.reset()
		i := serverOf(f, which == "leader")
		f.Servers[i].Stop()
		work(200)
		server, err := f.Servers[i].Restart()
		if err != nil {
			t.Fatal(err)
		}
		f.Servers[i] = server
		work(100)
		t.Logf("a %s of the event log was killed under load: the longest call took %s (before: %s)", which,
			stall.worst().Round(time.Millisecond), calm.Round(time.Millisecond))
		// An election takes several seconds. If an answer is lost, the client sends its request again after ten
		// seconds.
		if worst := stall.worst(); worst > 30*time.Second {
			t.Errorf("a call took %s when a %s was lost", worst, which)
		}
	}
	enough()
	wg.Wait()
	t.Logf("%d calls, %d of them a create and its delete", done.Load(), creates.Load())

	for i, s := range boxes {
		if got := strings.Count(mustExec(ctx, t, s, script("cat /tmp/runs")), "x"); int64(got) != ran[i].Load() {
			t.Errorf("in %s %d execs ran, %d were answered", s.ID(), got, ran[i].Load())
		}
	}
	if now := leases(ctx, t, f); now != tokens {
		t.Errorf("leases were lost: %s before, %s now", tokens, now)
	}
	for i, w := range workers {
		if left := f.Objects(hosts[i].Host); len(left) != 2 {
			t.Errorf("left on the engine of %s: %q", w.Name, left)
		}
	}
	f.Judge()
}

// leases lists which worker holds which host with which token.
func leases(ctx context.Context, t *testing.T, f *fleet.Fleet) (text string) {
	t.Helper()
	hosts, err := sdk.ReadAll(f.Operator.Hosts().List(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		text += fmt.Sprintf("%s %s %d; ", h.Worker, h.Instance, h.Token)
	}
	return text
}

// serverOf returns the index of the server that leads the event log or, if leader is false, of a server that follows
// it.
func serverOf(f *fleet.Fleet, leader bool) (index int) {
	f.TB.Helper()
	f.Eventually(20*time.Second, "the event log has a leader", func() error {
		led := false
		for i, s := range f.Servers {
			leads := f.Leads(s, protocol.StreamEvents)
			led = led || leads
			if leads == leader {
				index = i
			}
		}
		if !led {
			return errors.New("none")
		}
		return nil
	})
	return index
}

// stalls records the duration of the longest call.
type stalls struct {
	mu      sync.Mutex
	longest time.Duration
}

func (s *stalls) ended(begin time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, time.Since(begin))
}

func (s *stalls) worst() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

func (s *stalls) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = 0
}
