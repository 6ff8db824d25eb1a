package placement

import (
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/boxfleet/boxfleet/protocol"
)

// Index finds the host that [Place] would choose, without rating every host. For each kind of sandbox it keeps a
// tournament tree of the hosts, ordered by how well they fit. It checks the best host against the rules of Place, and
// takes the next best host if the rules refuse. It uses the hosts, usages and images that were last passed to
// [Index.SetHosts], [Index.SetUsage] and [Index.SetImages]. It is not safe for concurrent use.
type Index struct {
	rows   []Row          // by worker name
	byID   map[string]int // by host id
	images Images
	limits Limits
	kinds  map[string]*kind
	clock  uint64 // counts placements, to find the least recently used kind
}

// Row is a host with a version that changes when its worker reports something different.
type Row struct {
	Host    *protocol.Host
	Version uint64
}

// HostsOf returns the hosts of some rows.
func HostsOf(rows []Row) []*protocol.Host {
	hosts := make([]*protocol.Host, len(rows))
	for i := range rows {
		hosts[i] = rows[i].Host
	}
	return hosts
}

// kind is a set of sandboxes that every host treats alike.
type kind struct {
	sandbox *protocol.Sandbox       // one sandbox of the kind, without the fields that no host checks
	specs   []*protocol.SandboxSpec // by host: the sandbox's spec there; nil if the host can never take it
	bonus   []float64               // by host: the bonus to its fit for images that it already has
	fit     []float64               // a tree; the leaves say how well each host fits; -Inf if the host refuses
	leaves  int
	used    uint64
}

// maxKinds limits the kinds in memory, because each change of a host is applied to every kind.
const maxKinds = 64

// NewIndex returns an index without hosts.
func NewIndex() *Index {
	return &Index{byID: map[string]int{}, images: Images{}, kinds: map[string]*kind{}}
}

// SetHosts replaces all hosts. The rows must be ordered by worker name.
func (x *Index) SetHosts(rows []Row) {
	same := len(rows) == len(x.rows)
	for i := 0; same && i < len(rows); i++ {
		same = rows[i].Host.Worker == x.rows[i].Host.Worker && rows[i].Host.HostID == x.rows[i].Host.HostID
	}
	before := x.rows
	x.rows = rows
	if limits := LimitsOf(HostsOf(rows)); !same || limits != x.limits {
		x.limits = limits
		clear(x.kinds)
		clear(x.byID)
		for i := range rows {
			x.byID[rows[i].Host.HostID] = i
		}
		return
	}
	for i := range rows {
		if rows[i].Version != before[i].Version {
			x.rateSpecs(i)
		} else if !sameUsage(rows[i].Host, before[i].Host) || rows[i].Host.State != before[i].Host.State {
			x.rateLoad(i)
		}
	}
}

func sameUsage(a, b *protocol.Host) bool {
	return a.Sandboxes == b.Sandboxes && a.UsedCPU == b.UsedCPU && a.UsedMem == b.UsedMem &&
		a.UsedDisk == b.UsedDisk && a.UsedPIDs == b.UsedPIDs && a.UsedGPUs == b.UsedGPUs
}

// SetUsage replaces the usage of a host.
func (x *Index) SetUsage(hostID string, u Usage) {
	i, known := x.byID[hostID]
	if !known {
		return // SetHosts will add the host with its usage
	}
	h := *x.rows[i].Host
	h.Sandboxes, h.UsedCPU, h.UsedMem, h.UsedDisk, h.UsedPIDs, h.UsedGPUs = 0, 0, 0, 0, 0, 0
	u.AddTo(&h)
	x.rows[i].Host = &h
	x.rateLoad(i)
}

// SetImages replaces a worker's report about the images of its host; nil removes the report.
func (x *Index) SetImages(worker string, reported *protocol.HostImages) {
	if reported == nil {
		delete(x.images, worker)
	} else {
		x.images[worker] = reported
	}
	for i := range x.rows {
		if x.rows[i].Host.Worker == worker {
			x.rateSpecs(i)
		}
	}
}

// rateSpecs rates a host again for each kind, after the host's offer has changed.
func (x *Index) rateSpecs(i int) {
	for _, k := range x.kinds {
		x.match(k, i)
		k.set(i, x.fit(k, i))
	}
}

// rateLoad rates a host again for each kind, after only its state or load changed.
func (x *Index) rateLoad(i int) {
	for _, k := range x.kinds {
		k.set(i, x.fit(k, i))
	}
}

// Hosts returns all hosts.
func (x *Index) Hosts() []*protocol.Host { return HostsOf(x.rows) }

// Images returns the workers' reports about images.
func (x *Index) Images() Images { return x.images }

// Lost returns the ids of the lost hosts.
func (x *Index) Lost() (ids []string) {
	for i := range x.rows {
		if x.rows[i].Host.State == protocol.HostLost {
			ids = append(ids, x.rows[i].Host.HostID)
		}
	}
	return ids
}

// Place returns the host that the function [Place] chooses among all known hosts, or nil if all refuse. kindName is the
// result of [KindOf] for the sandbox.
func (x *Index) Place(b *protocol.Sandbox, kindName string) *protocol.Host {
	if b.Resuming { // the sandbox is bound to its host
		if i, known := x.byID[b.HostID]; known && refusal(b, x.rows[i].Host, x.images, x.limits) == "" {
			return x.rows[i].Host
		}
		return nil
	}
	k := x.kind(b, kindName)
	var refused []int
	defer func() {
		for _, i := range refused {
			k.set(i, x.fit(k, i))
		}
	}()
	for {
		i := k.best()
		if i < 0 {
			return nil
		}
		if refusal(b, x.rows[i].Host, x.images, x.limits) == "" {
			return x.rows[i].Host
		}
		refused = append(refused, i)
		k.set(i, math.Inf(-1))
	}
}

// KindOf names the kind of a sandbox: a hash of the fields that hosts check.
func KindOf(b *protocol.Sandbox) string {
	name := sha256.New()
	name.Write(protocol.Encode(checkedFields(b.AcceptedSpec())))
	fmt.Fprintf(name, "\n%q %t", b.Defaulted, b.Resuming)
	if b.Accepted != nil {
		name.Write(protocol.Encode(checkedFields(&b.Spec)))
	}
	return string(name.Sum(nil))
}

// checkedFields returns a spec without the fields that no host checks. If a rule is added that checks one of these
// fields, the choice is still correct: Index.Place checks the rules with the sandbox's whole spec.
func checkedFields(s *protocol.SandboxSpec) *protocol.SandboxSpec {
	p := *s
	p.Command, p.Env, p.Labels, p.User, p.Cwd, p.Hostname, p.Copies, p.OnDelete = nil, nil, nil, "", "", "", nil, nil
	p.TTL, p.IdleTTL, p.QueueTimeout, p.CreateTimeout, p.Grace, p.OnHostLoss = 0, 0, 0, 0, 0, ""
	return &p
}

// kind returns the tree of a kind. It builds the tree if the index has none.
func (x *Index) kind(b *protocol.Sandbox, name string) *kind {
	x.clock++
	k := x.kinds[name]
	if k == nil {
		if len(x.kinds) >= maxKinds {
			x.dropOldestKind()
		}
		k = x.build(b)
		x.kinds[name] = k
	}
	k.used = x.clock
	return k
}

func (x *Index) build(b *protocol.Sandbox) *kind {
	n := len(x.rows)
	k := &kind{specs: make([]*protocol.SandboxSpec, n), bonus: make([]float64, n), leaves: 1}
	for k.leaves < n {
		k.leaves *= 2
	}
	k.fit = make([]float64, 2*k.leaves)
	for i := range k.fit {
		k.fit[i] = math.Inf(-1)
	}
	k.sandbox = &protocol.Sandbox{State: b.State, Spec: *checkedFields(&b.Spec), Defaulted: b.Defaulted}
	if b.Accepted != nil {
		k.sandbox.Accepted = checkedFields(b.Accepted)
	}
	for i := range x.rows {
		x.match(k, i)
		k.fit[k.leaves+i] = x.fit(k, i)
	}
	for i := k.leaves - 1; i > 0; i-- {
		k.fit[i] = max(k.fit[2*i], k.fit[2*i+1])
	}
	return k
}

func (x *Index) dropOldestKind() {
	oldest, used := "", uint64(math.MaxUint64)
	for name, k := range x.kinds {
		if k.used < used {
			oldest, used = name, k.used
		}
	}
	delete(x.kinds, oldest)
}

// match records what a host offers a kind, independent of the host's load.
func (x *Index) match(k *kind, i int) {
	h := x.rows[i].Host
	k.specs[i] = nil
	s, err := SpecOn(k.sandbox, h)
	if err != nil || len(unmet(k.sandbox, s, h, x.limits)) > 0 || imageRefusal(s, h, x.images) != "" {
		return
	}
	k.specs[i], k.bonus[i] = s, imageBonus*imagesPresent(&k.sandbox.Spec, h, x.images)
}

// fit returns how well a host fits a kind now; -Inf if the host refuses.
func (x *Index) fit(k *kind, i int) float64 {
	h := x.rows[i].Host
	if s := k.specs[i]; s == nil || unavailable(k.sandbox, h) != "" || shortage(s, h) != "" {
		return math.Inf(-1)
	}
	return headroom(h) + k.bonus[i]
}

// set changes the leaf of a host, and the nodes above the leaf.
func (k *kind) set(i int, fit float64) {
	i += k.leaves
	k.fit[i] = fit
	for i /= 2; i > 0; i /= 2 {
		k.fit[i] = max(k.fit[2*i], k.fit[2*i+1])
	}
}

// best returns the index of the host that fits best, or the first such host if several fit equally well; -1 if all
// refuse.
func (k *kind) best() int {
	if math.IsInf(k.fit[1], -1) || len(k.specs) == 0 {
		return -1
	}
	i := 1
	for i < k.leaves {
		if i *= 2; k.fit[i] < k.fit[i+1] {
			i++
		}
	}
	return i - k.leaves
}
