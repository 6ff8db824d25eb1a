package coordinator

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

func handle(id string, state protocol.SandboxState) *protocol.Sandbox {
	return &protocol.Sandbox{Tenant: "t", ID: id, State: state, Desired: protocol.StateReady, Sequence: 1,
		CreatedAt: time.Unix(1000, 0), StateChangedAt: time.Unix(1000, 0)}
}

func (p *projection) put(b *protocol.Sandbox, record uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(key{Tenant: b.Tenant, ID: b.ID}, b, record)
}

func drawHandle(t *rapid.T, id string, before *protocol.Sandbox) *protocol.Sandbox {
	b := handle(id, rapid.SampledFrom([]protocol.SandboxState{protocol.StatePending, protocol.StatePending,
		protocol.StateReady, protocol.StateStopped,
		protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted}).Draw(t, "state"))
	b.StateChangedAt = time.Unix(int64(rapid.IntRange(1, 5).Draw(t, "since")), 0)
	b.Spec = protocol.SandboxSpec{CPU: float64(rapid.IntRange(1, 3).Draw(t, "cpu")) / 10, Memory: 1 << 30,
		GPUs: rapid.SampledFrom([]string{"", "all"}).Draw(t, "gpus")}
	if host := rapid.IntRange(0, 3).Draw(t, "host"); host > 0 {
		b.Worker, b.HostID = fmt.Sprint("w", host), fmt.Sprint("h", host)
		b.Assigned = b.State == protocol.StateReady || b.State == protocol.StatePending &&
			rapid.Bool().Draw(t, "assigned")
		b.Resuming = b.State == protocol.StatePending && rapid.Bool().Draw(t, "resuming")
	}
	if before != nil { // the resources that a sandbox takes change only with its assignment
		if b.Generation = before.Generation; b.HostID != before.HostID || !before.Assigned {
			b.Generation++
		} else {
			b.Spec = before.Spec
		}
	}
	b.ActiveExecs = rapid.IntRange(0, 1).Draw(t, "execs")
	return b
}

// The indexes agree with a scan of all sandboxes, after any changes of sandboxes and of assignments in flight.
func TestTheIndexesAgreeWithAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newProjection(nil, nil, "c1", 0)
		model, flying := map[key]*protocol.Sandbox{}, map[key]reservedOn{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			k := key{Tenant: "t", ID: fmt.Sprint("s", rapid.IntRange(0, 4).Draw(t, "which"))}
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				if b := model[k]; b != nil {
					if ok, _ := p.work.launch(b, "h9", placement.UsageOf(&b.Spec), protocol.Quota{}); ok {
						flying[k] = reservedOn{"h9", loadOf(placement.UsageOf(&b.Spec))}
					}
				}
			case 1:
				p.work.abort(k)
				delete(flying, k)
			default:
				b := drawHandle(t, k.ID, model[k])
				p.put(b, 1)
				if b.State == protocol.StateDeleted {
					delete(model, k)
					delete(flying, k)
				} else {
					model[k] = b
				}
			}
			check(t, p, model, flying)
		}
	})
}

func check(t *rapid.T, p *projection, model map[key]*protocol.Sandbox, flying map[key]reservedOn) {
	used, workers := map[string]load{}, map[string]string{}
	on, forWorker, pending, active := map[string]map[key]bool{}, map[key]bool{}, map[key]bool{}, map[key]bool{}
	var line []waiting
	for k, b := range model {
		if b.Worker != "" {
			workers[b.HostID] = b.Worker
			if on[b.HostID] == nil {
				on[b.HostID] = map[key]bool{}
			}
			on[b.HostID][k] = true
			if b.Assigned || b.State == protocol.StateDeleting {
				u := used[b.HostID]
				u.add(loadOf(placement.UsageOf(&b.Spec)), 1)
				used[b.HostID] = u
			}
			if workerPending(b) {
				forWorker[k] = true
			}
		}
		if b.State == protocol.StatePending {
			pending[k] = true
		}
		if b.ActiveExecs > 0 {
			active[k] = true
		}
		if b.State == protocol.StatePending && (!b.Assigned || b.HostID == "h1" && !b.Resuming) { // h1 is lost
			line = append(line, waiting{b.StateChangedAt, k})
		}
	}
	for _, f := range flying {
		u := used[f.host]
		u.add(f.used, 1)
		used[f.host] = u
	}
	slices.SortFunc(line, waiting.compare)
	got, gotWorkers := p.work.hosts.usages()
	if !maps.Equal(gotWorkers, workers) {
		t.Fatalf("the workers are %v, want %v", gotWorkers, workers)
	}
	for host := range on {
		if u := used[host].usage(); got[host] != u {
			t.Fatalf("the usage of %s is %+v, want %+v", host, got[host], u)
		}
		if n := len(p.work.hosts.on(host)); n != len(on[host]) {
			t.Fatalf("%s has %d sandboxes, want %d", host, n, len(on[host]))
		}
	}
	if got["h9"] != used["h9"].usage() {
		t.Fatalf("the usage of assignments in flight is %+v, want %+v", got["h9"], used["h9"].usage())
	}
	gotForWorker := map[key]bool{}
	p.work.eachPending(func(string) bool { return true },
		func(k key, b *protocol.Sandbox) { gotForWorker[k] = b == model[k] })
	if !maps.Equal(gotForWorker, forWorker) {
		t.Fatalf("the sandboxes for which a worker has something to do are %v, want %v", gotForWorker, forWorker)
	}
	if len(p.work.pendingSandboxes()) != len(pending) || len(p.work.withExecs()) != len(active) {
		t.Fatalf("%d are pending, and %d have execs; want %d and %d", len(p.work.pendingSandboxes()),
			len(p.work.withExecs()), len(pending), len(active))
	}
	checkShares(t, p, model, flying)
	list := p.work.waitingForHost([]string{"h1", "h8"}, true)
	for i, b := range list {
		if len(list) != len(line) || (key{Tenant: b.Tenant, ID: b.ID}) != line[i].key {
			t.Fatalf("the queue is %v, want %v", list, line)
		}
	}
	if len(list) != len(line) || len(p.work.waitingForHost([]string{"h1"}, false)) > len(line) {
		t.Fatalf("%d sandboxes wait, want %d", len(list), len(line))
	}
}

// checkShares compares what the tenant uses with a scan of its sandboxes.
func checkShares(t *rapid.T, p *projection, model map[key]*protocol.Sandbox, flying map[key]reservedOn) {
	want := share{}
	for k, b := range model {
		one := share{execs: b.ActiveExecs}
		f, flies := flying[k]
		switch {
		case flies:
			one.load = f.used
		case b.Worker != "" && (b.Assigned || b.State == protocol.StateDeleting):
			one.load = loadOf(placement.UsageOf(&b.Spec))
		case b.Worker != "" && (b.State == protocol.StateStopped || b.State == protocol.StatePending && b.Resuming):
			one.sandboxes = 1
		}
		if b.State == protocol.StatePending && !b.Assigned {
			one.waiting = 1
		}
		want.add(one, 1)
	}
	got := share{}
	if sum := p.work.tenants.sums["t"]; sum != nil {
		got = *sum
	}
	if got != want {
		t.Fatalf("the tenant uses %+v, want %+v", got, want)
	}
}

// heapInUse returns how many bytes of the heap are in use after a garbage collection.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// settledHeap returns heapInUse once it no longer shrinks: connections and servers of earlier tests release their
// memory a little after they were closed, and pools release theirs after several garbage collections.
func settledHeap(t *testing.T) (bytes uint64) {
	t.Helper()
	stable := 0
	eventually.Holds(t, time.Minute, "the heap no longer shrinks", func() bool {
		last := bytes
		if bytes = heapInUse(); last != 0 && last < bytes+64<<10 {
			stable++
		} else {
			stable = 0
		}
		return stable == 3
	})
	return bytes
}

// A deleted sandbox takes at most 300 bytes of memory, however much it took while it was living.
func TestADeletedSandboxTakesAtMost300Bytes(t *testing.T) {
	const n = 50_000
	p := newProjection(nil, nil, "c1", 0)
	before := settledHeap(t)
	for i := range n {
		b := handle(fmt.Sprintf("01k%023d", i), protocol.StateReady) // as long as a ULID
		b.Tenant = fmt.Sprint("tenant-of-some-length-", i%3)
		b.Worker, b.HostID, b.Assigned = "w", fmt.Sprint("h", i%100), true
		b.Spec = protocol.SandboxSpec{Image: "i", CPU: 1, Env: map[string]string{"A": string(make([]byte, 1000))},
			Labels: map[string]string{"l": b.ID}}
		p.put(b, uint64(i))
		gone := *b
		gone.State, gone.Assigned = protocol.StateDeleted, false
		p.put(&gone, uint64(i)+1)
	}
	took := int64(settledHeap(t)) - int64(before)
	if each := took / n; each > 300 {
		t.Errorf("a deleted sandbox takes %d bytes", each)
	} else {
		t.Logf("a deleted sandbox takes %d bytes, %d of them for its entry and key", each,
			unsafe.Sizeof(deletedEntry{})+unsafe.Sizeof(key{}))
	}
	if len(p.read.sandboxes)+len(p.journals)+len(p.work.assigned)+len(p.work.hosts.of)+len(p.work.deadlines.at) > 0 ||
		len(p.read.deleted) != n {
		t.Errorf("%d sandboxes are deleted and %d are living, or an index still has entries", len(p.read.deleted),
			len(p.read.sandboxes))
	}
	runtime.KeepAlive(p)
}

func TestASelectorFindsWhatMayHaveItsLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		labels := rapid.MapOf(rapid.StringN(0, 3, 3), rapid.StringN(0, 3, 3)).Draw(t, "labels")
		selector := map[string]string{}
		for k, v := range labels {
			if rapid.Bool().Draw(t, "selected") {
				selector[k] = v
			}
		}
		if of := labelSet(selector, ""); labelSet(labels, "")&of != of {
			t.Errorf("a sandbox with labels %v does not match the selector %v", labels, selector)
		}
	})
}

// Each sandbox is due once, in the order of the deadlines.
func TestDeadlinesComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, model := deadlines{at: map[key]time.Time{}}, map[key]time.Time{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			k, at := key{Tenant: "t", ID: fmt.Sprint(rapid.IntRange(0, 9).Draw(t,
				"which"))}, time.Unix(int64(rapid.IntRange(1, 20).Draw(t, "at")), 0)
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				d.drop(k)
				delete(model, k)
			case 1:
				due, next := d.due(at, 1000)
				for _, k := range due {
					if v, there := model[k]; !there || v.After(at) {
						t.Fatalf("%v is due at %v, and is returned at %v", k, v, at)
					}
					delete(model, k)
				}
				for _, v := range model {
					if !v.After(at) || next.IsZero() || v.Before(next) {
						t.Fatalf("at %v a sandbox with deadline %v is left, and the next deadline is reported as %v", at, v, next)
					}
				}
			default:
				d.set(k, at)
				if v, there := model[k]; !there || at.Before(v) {
					model[k] = at
				}
			}
		}
	})
}

// BenchmarkPass measures a pass of the scheduler when no sandbox waits, with living and deleted sandboxes.
func BenchmarkPass(b *testing.B) {
	for _, c := range []struct{ living, over int }{{0, 0}, {0, 100_000}, {100_000, 0}} {
		b.Run(fmt.Sprintf("living=%d/over=%d", c.living, c.over), func(b *testing.B) {
			p := newProjection(nil, nil, "c1", 0)
			for i := range c.living + c.over {
				s := handle(fmt.Sprint("s", i), protocol.StateReady)
				if s.Worker, s.HostID, s.Assigned = "w", fmt.Sprint("h", i%1000), true; i >= c.living {
					s.State = protocol.StateDeleted
				}
				p.put(s, uint64(i)+1)
			}
			co := &coordinator{cfg: Config{Timing: Timing{Scan: time.Hour, Suspect: time.Hour}}, projection: p,
				images: newHostImages(p.work.schedulerWake)}
			co.hosts = newHosts(co.cfg.Timing, p)
			co.hosts.now = time.Now
			for i := range 1000 {
				h := host(fmt.Sprint("w", i), 0)
				h.HostID = fmt.Sprint("h", i)
				co.hosts.register(h.Worker, h)
			}
			s := newScheduler(&leader{coordinator: co})
			s.pass(b.Context())
			for b.Loop() {
				s.pass(b.Context())
			}
		})
	}
}
