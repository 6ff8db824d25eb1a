package execindex

import (
	"github.com/boxfleet/boxfleet/jetstream"
)

// filter is a Bloom filter of the ids on a page: it answers "not on the page" or "maybe". It takes at most 10 bits per
// id. For 2 in 100 ids that are not on the page it answers "maybe"; then the page is read.
type filter struct {
	bits []uint64
	room int // how many more ids fit
}

const (
	filterBits   = 9  // bits for each id that the filter has room for
	filterRoom   = 24 // one spare place per 24 ids
	filterProbes = 6
)

func filterOf(p jetstream.ExecPage) *filter {
	f := &filter{room: p.Len() + p.Len()/filterRoom}
	f.bits = make([]uint64, (f.room*filterBits+63)/64)
	for i := range p.Len() {
		f.add(p.At(i).Hash)
	}
	return f
}

// FilterBytes returns the memory that the filter of a page takes.
func FilterBytes(p jetstream.ExecPage) int { return filterOf(p).size() }

func (f *filter) size() int { return 48 + 8*len(f.bits) }

// add adds an id. It returns false if the filter is full.
func (f *filter) add(h jetstream.ExecHash) bool {
	if f.room == 0 {
		return false
	}
	f.room--
	return f.probe(h.Prefix(), func(word *uint64, bit uint64) bool { *word |= bit; return true })
}

func (f *filter) mayHave(h jetstream.ExecHash) bool {
	return len(f.bits) > 0 && f.probe(h.Prefix(), func(word *uint64, bit uint64) bool { return *word&bit != 0 })
}

func (f *filter) probe(x uint64, each func(word *uint64, bit uint64) bool) bool {
	step := x*0x9e3779b97f4a7c15>>17 | 1
	for range filterProbes {
		x += step
		if at := x % uint64(64*len(f.bits)); !each(&f.bits[at/64], 1<<(at%64)) {
			return false
		}
	}
	return true
}
