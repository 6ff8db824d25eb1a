package coordinator

import (
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/boxfleet/boxfleet/protocol"
)

// hostIndex finds the host that [place] would choose, without a look at each. place is the definition: the index
// keeps, for each kind of sandbox, the hosts in a tree by how well they fit, asks refuse about the best, and goes on
// to the next where it says no. It knows of a host what it was told last, see setRows, setUse and setImages; it is
// not safe for use by several goroutines.
type hostIndex struct {
	rows   []hostRow      // by the workers' names
	byID   map[string]int // by host id
	images imageTable
	most   abilities
	kinds  map[string]*kind
	clock  uint64 // counts placements, to tell which kinds were not used for long
}

// hostRow is a host, and a number that changes with whatever its worker says of it.
type hostRow struct {
	host    *protocol.Host
	version uint64
}

// kind is a set of sandboxes between which no host makes a difference.
type kind struct {
	sandbox *protocol.Sandbox       // one of them, without what no host looks at
	there   []*protocol.SandboxSpec // its spec on each host; nil where it can never be
	worth   []float64               // what the images that a host has are worth
	fit     []float64               // a tree: the leaves are how well each host fits, -Inf where it does not
	leaves  int
	used    uint64
}

// maxKinds bounds how many kinds are kept; each costs a look at a host when that host changes.
const maxKinds = 64

func newHostIndex() *hostIndex {
	return &hostIndex{byID: map[string]int{}, images: imageTable{}, kinds: map[string]*kind{}}
}

// setRows takes over all hosts, in the order of the workers' names.
func (x *hostIndex) setRows(rows []hostRow) {
	same := len(rows) == len(x.rows)
	for i := 0; same && i < len(rows); i++ {
		same = rows[i].host.Worker == x.rows[i].host.Worker && rows[i].host.HostID == x.rows[i].host.HostID
	}
	before := x.rows
	x.rows = rows
	hosts := make([]*protocol.Host, len(rows))
	for i := range rows {
		hosts[i] = rows[i].host
	}
	if most := abilitiesOf(hosts); !same || most != x.most {
		x.most = most
		clear(x.kinds)
		clear(x.byID)
		for i := range rows {
			x.byID[rows[i].host.HostID] = i
		}
		return
	}
	for i := range rows {
		if rows[i].version != before[i].version {
			x.changed(i, true)
		} else if !sameUse(rows[i].host, before[i].host) || rows[i].host.State != before[i].host.State {
			x.changed(i, false)
		}
	}
}

func sameUse(a, b *protocol.Host) bool {
	return a.Sandboxes == b.Sandboxes && a.UsedCPU == b.UsedCPU && a.UsedMem == b.UsedMem && a.UsedDisk == b.UsedDisk && a.UsedPIDs == b.UsedPIDs && a.UsedGPUs == b.UsedGPUs
}

// setUse takes over what is taken of a host.
func (x *hostIndex) setUse(hostID string, u usage) {
	i, known := x.byID[hostID]
	if !known {
		return // it comes with setRows
	}
	h := *x.rows[i].host
	h.Sandboxes, h.UsedCPU, h.UsedMem, h.UsedDisk, h.UsedPIDs, h.UsedGPUs = 0, 0, 0, 0, 0, 0
	u.addTo(&h)
	x.rows[i].host = &h
	x.changed(i, false)
}

// setImages takes over what a worker says of its host's images; nil: nothing any more.
func (x *hostIndex) setImages(worker string, told *protocol.HostImages) {
	if told == nil {
		delete(x.images, worker)
	} else {
		x.images[worker] = told
	}
	for i := range x.rows {
		if x.rows[i].host.Worker == worker {
			x.changed(i, true)
		}
	}
}

// changed judges a host again for each kind; all: also what does not depend on how full it is.
func (x *hostIndex) changed(i int, all bool) {
	for _, k := range x.kinds {
		if all {
			x.meet(k, i)
		}
		k.set(i, x.fits(k, i))
	}
}

// hosts returns all hosts.
func (x *hostIndex) hosts() []*protocol.Host {
	hosts := make([]*protocol.Host, len(x.rows))
	for i := range x.rows {
		hosts[i] = x.rows[i].host
	}
	return hosts
}

// lost returns the ids of the hosts that are lost.
func (x *hostIndex) lost() (ids []string) {
	for i := range x.rows {
		if x.rows[i].host.State == protocol.HostLost {
			ids = append(ids, x.rows[i].host.HostID)
		}
	}
	return ids
}

// place returns the host that [place] chooses of all that are known, nil for none. of is the sandbox's kind.
func (x *hostIndex) place(b *protocol.Sandbox, of string) *protocol.Host {
	if b.Resuming { // it is bound to its host
		if i, known := x.byID[b.HostID]; known && refuse(b, x.rows[i].host, x.images, x.most) == "" {
			return x.rows[i].host
		}
		return nil
	}
	k := x.kind(b, of)
	var refused []int
	defer func() {
		for _, i := range refused {
			k.set(i, x.fits(k, i))
		}
	}()
	for {
		i := k.best()
		if i < 0 {
			return nil
		}
		if refuse(b, x.rows[i].host, x.images, x.most) == "" {
			return x.rows[i].host
		}
		refused = append(refused, i)
		k.set(i, math.Inf(-1))
	}
}

// kindOf names the kind of a sandbox: what is left of it without what no host looks at.
func kindOf(b *protocol.Sandbox) string {
	name := sha256.New()
	name.Write(protocol.Encode(plain(b.AcceptedSpec())))
	fmt.Fprintf(name, "\n%q %t", b.BuiltIn, b.Resuming)
	if b.Accepted != nil {
		name.Write(protocol.Encode(plain(&b.Spec)))
	}
	return string(name.Sum(nil))
}

// plain is a spec without what no host looks at. Should one look at it after all, refuse says so.
func plain(s *protocol.SandboxSpec) *protocol.SandboxSpec {
	p := *s
	p.Command, p.Env, p.Labels, p.User, p.Cwd, p.Hostname, p.Copies, p.OnDelete = nil, nil, nil, "", "", "", nil, nil
	p.TTL, p.IdleTTL, p.QueueTimeout, p.CreateTimeout, p.Grace, p.OnHostLoss = 0, 0, 0, 0, 0, ""
	return &p
}

// kind returns the tree of a kind, made where it is not there.
func (x *hostIndex) kind(b *protocol.Sandbox, of string) *kind {
	x.clock++
	k := x.kinds[of]
	if k == nil {
		if len(x.kinds) >= maxKinds {
			x.dropOldest()
		}
		n := len(x.rows)
		k = &kind{there: make([]*protocol.SandboxSpec, n), worth: make([]float64, n), leaves: 1}
		for k.leaves < n {
			k.leaves *= 2
		}
		k.fit = make([]float64, 2*k.leaves)
		for i := range k.fit {
			k.fit[i] = math.Inf(-1)
		}
		sandbox := &protocol.Sandbox{State: b.State, Spec: *plain(&b.Spec), BuiltIn: b.BuiltIn}
		if b.Accepted != nil {
			sandbox.Accepted = plain(b.Accepted)
		}
		k.sandbox = sandbox
		for i := range x.rows {
			x.meet(k, i)
			k.fit[k.leaves+i] = x.fits(k, i)
		}
		for i := k.leaves - 1; i > 0; i-- {
			k.fit[i] = max(k.fit[2*i], k.fit[2*i+1])
		}
		x.kinds[of] = k
	}
	k.used = x.clock
	return k
}

func (x *hostIndex) dropOldest() {
	oldest, used := "", uint64(math.MaxUint64)
	for name, k := range x.kinds {
		if k.used < used {
			oldest, used = name, k.used
		}
	}
	delete(x.kinds, oldest)
}

// meet judges what a host would be for a kind if it were empty.
func (x *hostIndex) meet(k *kind, i int) {
	h := x.rows[i].host
	k.there[i] = nil
	s, err := specOn(k.sandbox, h)
	if err != nil || len(lacks(k.sandbox, s, h, x.most)) > 0 || imageRefusal(s, h, x.images) != "" {
		return
	}
	k.there[i], k.worth[i] = s, imageWorth*imagesThere(&k.sandbox.Spec, h, x.images)
}

// fits is how well a host fits a kind now, -Inf where it does not.
func (x *hostIndex) fits(k *kind, i int) float64 {
	h := x.rows[i].host
	if s := k.there[i]; s == nil || closed(k.sandbox, h) != "" || crowded(s, h) != "" {
		return math.Inf(-1)
	}
	return room(h) + k.worth[i]
}

// set changes a leaf.
func (k *kind) set(i int, fit float64) {
	i += k.leaves
	k.fit[i] = fit
	for i /= 2; i > 0; i /= 2 {
		k.fit[i] = max(k.fit[2*i], k.fit[2*i+1])
	}
}

// best is the host that fits best, of several the first; -1 for none.
func (k *kind) best() int {
	if math.IsInf(k.fit[1], -1) || len(k.there) == 0 {
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
