package coordinator

import (
	"container/heap"
	"strings"

	"github.com/boxfleet/boxfleet/jetstream"
)

// outputUsage counts how much output each sandbox has in the log. To build the counts, a new leader reads the headers
// of all messages in the log once. The output of each sandbox is divided into about [outputPieces] pieces, so that its
// oldest part can be removed alone. outputUsage is pure.
type outputUsage struct {
	grain   int64 // a piece that has this many bytes is complete, and a new piece begins
	tenants map[string]*tenantOutput
	first   uint64 // the log's first record at the last call of expire
}

type tenantOutput struct {
	bytes     int64
	sandboxes map[string]*sandboxOutput
}

type sandboxOutput struct {
	bytes  int64
	pieces []outputPiece // the oldest first
}

// outputPiece is a contiguous part of one sandbox's output.
type outputPiece struct {
	last  uint64 // record of its last message
	bytes int64
}

const (
	outputPieces   = 64
	outputGrainMin = 64 << 10
)

// outputLimits says how much output may be kept; 0: no limit.
type outputLimits struct {
	sandbox, Tenant, all int64
	quota                func(tenant string) int64 // nil: no tenant has a quota
}

// The method "of" returns the limit of one tenant: the smaller of the tenant's quota and the limit that applies to
// every tenant; 0: no limit.
func (l outputLimits) of(tenant string) int64 {
	if l.quota == nil {
		return l.Tenant
	}
	own := l.quota(tenant)
	if own == 0 || l.Tenant > 0 && l.Tenant < own {
		return l.Tenant
	}
	return own
}

// outputCut is the part of a sandbox's output that must be removed: its oldest messages.
type outputCut struct {
	key
	through uint64 // the last record to remove
	bytes   int64
}

func newOutputUsage(grain int64) *outputUsage {
	return &outputUsage{grain: max(grain, outputGrainMin), tenants: map[string]*tenantOutput{}}
}

func (u *outputUsage) add(m jetstream.StoredOutput) {
	t := u.tenants[m.Tenant]
	if t == nil {
		t = &tenantOutput{sandboxes: map[string]*sandboxOutput{}}
		u.tenants[strings.Clone(m.Tenant)] = t // the name in the message would keep the whole message in memory
	}
	s := t.sandboxes[m.Sandbox]
	if s == nil {
		s = &sandboxOutput{}
		t.sandboxes[strings.Clone(m.Sandbox)] = s
	}
	if n := len(s.pieces); n == 0 || s.pieces[n-1].bytes >= u.grain {
		s.pieces = append(s.pieces, outputPiece{})
	}
	p := &s.pieces[len(s.pieces)-1]
	p.last = m.Record
	p.bytes += m.Bytes
	s.bytes += m.Bytes
	t.bytes += m.Bytes
}

// forget subtracts a sandbox's output from the counts, up to and including a record.
func (u *outputUsage) forget(k key, through uint64) {
	t := u.tenants[k.Tenant]
	if t == nil || t.sandboxes[k.ID] == nil {
		return
	}
	s := t.sandboxes[k.ID]
	for len(s.pieces) > 0 && s.pieces[0].last <= through {
		s.bytes -= s.pieces[0].bytes
		t.bytes -= s.pieces[0].bytes
		s.pieces = s.pieces[1:]
	}
	if len(s.pieces) == 0 {
		delete(t.sandboxes, k.ID)
	}
	if len(t.sandboxes) == 0 {
		delete(u.tenants, k.Tenant)
	}
}

// expire subtracts the output before the log's first record from the counts.
func (u *outputUsage) expire(first uint64) {
	if first <= u.first {
		return
	}
	u.first = first
	for tenant, t := range u.tenants {
		for id := range t.sandboxes {
			u.forget(key{Tenant: tenant, ID: id}, first-1)
		}
	}
}

// cuts returns the output that must be removed so that every sandbox and tenant is within its limit and the log has
// room. A tenant over its limit loses the oldest output of its largest sandboxes. When the log is nearly full, the
// largest tenants lose output in the same way. Each time, output is removed until an eighth of the limit is free, so
// that the limit is not exceeded again at once.
func (u *outputUsage) cuts(l outputLimits, stored int64) []outputCut {
	if !u.exceeds(l, stored) {
		return nil
	}
	c := cutting{done: map[key]*outputCut{}}
	for tenant, t := range u.tenants {
		left := &tenantLeft{bytes: t.bytes}
		for id, s := range t.sandboxes {
			b := &sandboxLeft{key: key{Tenant: tenant, ID: id}, sandboxOutput: s, left: s.bytes}
			left.sandboxes = append(left.sandboxes, b)
			if l.sandbox > 0 && s.bytes > l.sandbox {
				for b.left > lessEighth(l.sandbox) && c.cut(left, b) {
				}
			}
		}
		if most := l.of(tenant); most > 0 && left.bytes > most {
			heap.Init(left)
			for left.bytes > lessEighth(most) && c.cutLargest(left) {
			}
		}
		c.tenants = append(c.tenants, left)
	}
	if high := lessEighth(l.all); l.all > 0 && stored-c.bytes > high {
		for _, t := range c.tenants {
			heap.Init(t)
		}
		heap.Init(&c)
		for stored-c.bytes > lessEighth(high) && len(c.tenants) > 0 && c.cutLargest(c.tenants[0]) {
			heap.Fix(&c, 0)
		}
	}
	all := make([]outputCut, 0, len(c.done))
	for _, cut := range c.done {
		all = append(all, *cut)
	}
	return all
}

// exceeds reports whether a sandbox, a tenant or the log is over its limit.
func (u *outputUsage) exceeds(l outputLimits, stored int64) bool {
	if l.all > 0 && stored > lessEighth(l.all) {
		return true
	}
	for tenant, t := range u.tenants {
		if most := l.of(tenant); most > 0 && t.bytes > most {
			return true
		}
		if l.sandbox == 0 || t.bytes <= l.sandbox {
			continue
		}
		for _, s := range t.sandboxes {
			if s.bytes > l.sandbox {
				return true
			}
		}
	}
	return false
}

func lessEighth(n int64) int64 { return n - n/8 }

// cutting is the output that remains after the cuts so far. It is a heap of tenants, the largest first. Each tenant is
// a heap of its sandboxes, the largest first.
type cutting struct {
	tenants []*tenantLeft
	done    map[key]*outputCut
	bytes   int64
}

type tenantLeft struct {
	bytes     int64
	sandboxes []*sandboxLeft
}

type sandboxLeft struct {
	key
	*sandboxOutput
	cut  int // pieces removed so far
	left int64
}

// cut removes the oldest remaining piece of a sandbox. It returns false if no piece remains.
func (c *cutting) cut(t *tenantLeft, b *sandboxLeft) bool {
	if b.cut == len(b.pieces) {
		return false
	}
	p := b.pieces[b.cut]
	b.cut++
	b.left -= p.bytes
	t.bytes -= p.bytes
	c.bytes += p.bytes
	if c.done[b.key] == nil {
		c.done[b.key] = &outputCut{key: b.key}
	}
	c.done[b.key].through = p.last
	c.done[b.key].bytes += p.bytes
	return true
}

// cutLargest removes the oldest piece of a tenant's largest sandbox. It returns false if no piece remains.
func (c *cutting) cutLargest(t *tenantLeft) bool {
	if len(t.sandboxes) == 0 || !c.cut(t, t.sandboxes[0]) {
		return false
	}
	heap.Fix(t, 0)
	return true
}

func (t *tenantLeft) Len() int           { return len(t.sandboxes) }
func (t *tenantLeft) Less(i, j int) bool { return t.sandboxes[i].left > t.sandboxes[j].left }
func (t *tenantLeft) Swap(i, j int) {
	t.sandboxes[i], t.sandboxes[j] = t.sandboxes[j], t.sandboxes[i]
}
func (t *tenantLeft) Push(any) {}
func (t *tenantLeft) Pop() any { return nil }

func (c *cutting) Len() int           { return len(c.tenants) }
func (c *cutting) Less(i, j int) bool { return c.tenants[i].bytes > c.tenants[j].bytes }
func (c *cutting) Swap(i, j int)      { c.tenants[i], c.tenants[j] = c.tenants[j], c.tenants[i] }
func (c *cutting) Push(any)           {}
func (c *cutting) Pop() any           { return nil }
