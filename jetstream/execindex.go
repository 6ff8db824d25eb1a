package jetstream

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// A sandbox's index of execs says where the log has the events of each exec that was ever accepted. The index consists
// of a head and of pages. New entries are added to the head. When the head is full, its entries are moved to 2^depth
// pages, which are selected by the hash of the exec's id. Entries are removed only together with their sandbox.

// ExecHash identifies an exec of a sandbox: the first 16 bytes of the SHA-256 of its id.
type ExecHash [16]byte

// HashExec hashes an exec's id.
func HashExec(id string) ExecHash {
	sum := sha256.Sum256([]byte(id))
	return ExecHash(sum[:16])
}

// Prefix returns the first half of the hash, the only part that pages of earlier versions of Boxfleet have.
func (h ExecHash) Prefix() uint64 { return binary.BigEndian.Uint64(h[:8]) }

// ExecEntry is the index's entry for one exec. If Accepted is 0, the log no longer has the acceptance of the exec, or
// another entry of the exec has the acceptance.
type ExecEntry struct {
	Hash       ExecHash
	Accepted   uint64 // record of the exec's acceptance; 0: unknown
	Sequence   uint64 // number of the event that accepted the exec
	Started    uint64 // record of the exec's start; 0: not started
	Ended      uint64 // record of the exec's end; 0: not ended
	State      protocol.ExecState
	Cancelling bool // the exec's cancellation was requested

	short bool // the second half of the hash is unknown: see [ExecHash.Prefix]
}

// entryBytes is the size of an entry in a page: hash, four 6-byte numbers, state.
const entryBytes = 16 + 4*6 + 1

// entryStates are the exec states by their numbers in a page.
var entryStates = []protocol.ExecState{
	"",
	protocol.ExecStateAccepted,
	protocol.ExecStateRunning,
	protocol.ExecStateFinished,
	protocol.ExecStateFailed,
	protocol.ExecStateCancelled,
	protocol.ExecStateTimedOut,
}

const (
	entryCancelling = 0x80
	entryShort      = 0x40
	entryState      = 0x0f
)

func (e *ExecEntry) appendTo(b []byte) []byte {
	b = append(b, e.Hash[:]...)
	for _, n := range []uint64{e.Accepted, e.Sequence, e.Started, e.Ended} {
		b = append(b, byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	last := byte(max(slices.Index(entryStates, e.State), 0))
	if e.Cancelling {
		last |= entryCancelling
	}
	if e.short {
		last |= entryShort
	}
	return append(b, last)
}

func entryAt(b []byte) (e ExecEntry) {
	number := func(at int) (n uint64) {
		for _, c := range b[at : at+6] {
			n = n<<8 | uint64(c)
		}
		return n
	}
	copy(e.Hash[:], b)
	e.Accepted, e.Sequence, e.Started, e.Ended = number(16), number(22), number(28), number(34)
	last := b[entryBytes-1]
	if s := int(last & entryState); s < len(entryStates) {
		e.State = entryStates[s]
	}
	e.Cancelling, e.short = last&entryCancelling != 0, last&entryShort != 0
	return e
}

// EntryOfLostHistory returns the entry of an exec of which only [ExecHash.Prefix] is known.
func EntryOfLostHistory(prefix uint64) ExecEntry {
	e := ExecEntry{short: true}
	binary.BigEndian.PutUint64(e.Hash[:8], prefix)
	return e
}

// With returns the entry with the changes of a later entry of the same exec.
func (e ExecEntry) With(later ExecEntry) ExecEntry {
	set := func(n *uint64, to uint64) {
		if to != 0 {
			*n = to
		}
	}
	set(&e.Accepted, later.Accepted)
	set(&e.Sequence, later.Sequence)
	set(&e.Started, later.Started)
	set(&e.Ended, later.Ended)
	if slices.Index(entryStates, later.State) > slices.Index(entryStates, e.State) && !e.State.Terminal() {
		e.State = later.State
	}
	e.Cancelling = e.Cancelling || later.Cancelling
	return e
}

// ExecPage is a page of the index in its stored form: entries in the order of their hashes.
type ExecPage []byte

// Len returns the number of entries.
func (p ExecPage) Len() int { return len(p) / entryBytes }

// At returns entry i of the page. The first entry is entry 0.
func (p ExecPage) At(i int) ExecEntry { return entryAt(p[i*entryBytes:]) }

func (p ExecPage) hash(i int) []byte { return p[i*entryBytes : i*entryBytes+16] }

// Find returns the page's entry for an exec.
func (p ExecPage) Find(h ExecHash) (e ExecEntry, found bool) {
	if i := p.search(h[:]); i < p.Len() && bytes.Equal(p.hash(i), h[:]) {
		return p.At(i), true
	}
	// Short entries have zeros in the second half of the hash, so they come first among the entries with the same first
	// half.
	short := ExecHash{}
	copy(short[:8], h[:8])
	if i := p.search(short[:]); i < p.Len() && bytes.Equal(p.hash(i), short[:]) {
		if e := p.At(i); e.short {
			return e, true
		}
	}
	return ExecEntry{}, false
}

// search returns the number of the page's first entry whose hash is not before h.
func (p ExecPage) search(h []byte) int {
	low, high := 0, p.Len()
	for low < high {
		if mid := (low + high) / 2; bytes.Compare(p.hash(mid), h) < 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// With returns a copy of the page with additional entries. The parameter more lists these entries in any order. If the
// page already has an entry for the same exec, that entry is updated.
func (p ExecPage) With(more []ExecEntry) ExecPage {
	more = slices.Clone(more)
	slices.SortFunc(more, func(a, b ExecEntry) int { return bytes.Compare(a.Hash[:], b.Hash[:]) })
	all := make([]byte, 0, len(p)+len(more)*entryBytes)
	i := 0
	for k := 0; k < len(more); k++ {
		e := more[k]
		for ; k+1 < len(more) && more[k+1].Hash == e.Hash; k++ {
			e = e.With(more[k+1])
		}
		for ; i < p.Len() && bytes.Compare(p.hash(i), e.Hash[:]) < 0; i++ {
			all = append(all, p[i*entryBytes:(i+1)*entryBytes]...)
		}
		if i < p.Len() && bytes.Equal(p.hash(i), e.Hash[:]) {
			e = p.At(i).With(e)
			i++
		}
		all = e.appendTo(all)
	}
	return append(all, p[i*entryBytes:]...)
}

// Entries returns all entries.
func (p ExecPage) Entries() []ExecEntry {
	all := make([]ExecEntry, p.Len())
	for i := range all {
		all[i] = p.At(i)
	}
	return all
}

// valid reports whether stored bytes are a page: whole entries in the order of their hashes.
func (p ExecPage) valid() bool {
	if len(p)%entryBytes != 0 {
		return false
	}
	for i := 1; i < p.Len(); i++ {
		if bytes.Compare(p.hash(i-1), p.hash(i)) >= 0 {
			return false
		}
	}
	return true
}

// ExecHead is the head of a sandbox's index. The head and its pages cover the history up to Last, the position of the
// last message that has an exec's event.
type ExecHead struct {
	Last    Position
	Depth   int    // the index has 2^Depth pages; 0: no pages
	Spills  uint64 // how often entries were moved from the head to the pages
	Count   int    // approximate number of entries on the pages
	Entries ExecPage

	salt     uint64 // salt of the hash that selects pages, so that nobody can choose ids that all fall on one page
	revision uint64 // revision of the stored head; 0: not stored
}

// Stored returns the revision of the head in the bucket, or 0 if the head is not stored.
func (h *ExecHead) Stored() (revision uint64) { return h.revision }

// WithoutEntries returns a copy of the head without its entries.
func (h *ExecHead) WithoutEntries() *ExecHead {
	bare := *h
	bare.Entries = nil
	return &bare
}

// Follows reports whether the head is a version of the same index as another head, and is at least as new as the other
// head.
func (h *ExecHead) Follows(before *ExecHead) bool {
	return h.salt == before.salt && h.Depth >= before.Depth && h.Spills >= before.Spills
}

// Page returns the number of the page that an exec belongs on.
func (h *ExecHead) Page(x ExecHash) int { return pageAt(h.salt, h.Depth, x) }

// pageAt selects a page by multiplying with the salt, so that ids with chosen hashes do not end up on one page.
func pageAt(salt uint64, depth int, x ExecHash) int {
	if depth == 0 {
		return 0
	}
	return int((x.Prefix()*(salt|1) + salt>>1) >> (64 - depth))
}

const (
	headMost   = 1500 // maximum number of entries in the head, and roughly on a page: 64 KB
	pageWanted = 1100 // average number of entries on a page when the pages are made
	depthMost  = 20
)

// depthFor returns the depth that n entries need, but at least atLeast.
func depthFor(n, atLeast int) int {
	d := max(atLeast, 1)
	for d < depthMost && n>>d > pageWanted {
		d++
	}
	return d
}

type headValue struct {
	Version   int    `json:"v"`
	Last      uint64 `json:"last"`
	LastBatch string `json:"last_batch,omitempty"`
	Depth     int    `json:"depth,omitempty"`
	Spills    uint64 `json:"spills,omitempty"`
	Count     int    `json:"count,omitempty"`
	Salt      uint64 `json:"salt"`
	Entries   []byte `json:"entries,omitempty"`
}

func (h *ExecHead) encode() []byte {
	return protocol.Encode(&headValue{Version: protocol.Version, Last: h.Last.Record, LastBatch: h.Last.Batch,
		Depth: h.Depth, Spills: h.Spills, Count: h.Count, Salt: h.salt, Entries: h.Entries})
}

func decodeHead(value []byte, revision uint64) (*ExecHead, error) {
	var v headValue
	if err := protocol.Decode(value, &v); err != nil {
		return nil, err
	}
	if err := protocol.CheckVersion(v.Version); err != nil {
		return nil, err
	}
	h := &ExecHead{Last: Position{v.Last, v.LastBatch}, Depth: v.Depth, Spills: v.Spills, Count: v.Count,
		Entries: v.Entries, salt: v.Salt, revision: revision}
	if !h.Entries.valid() || h.Depth < 0 || h.Depth > depthMost {
		return nil, protocol.Errorf(
			protocol.Internal,
			protocol.ReasonUndecodable,
			"the head of an index of execs is damaged",
		)
	}
	return h, nil
}

type pageValue struct {
	Version int    `json:"v"`
	Entries []byte `json:"entries"`
}

func decodePage(value []byte) (ExecPage, error) {
	var v pageValue
	if err := protocol.Decode(value, &v); err != nil {
		return nil, err
	}
	if err := protocol.CheckVersion(v.Version); err != nil {
		return nil, err
	}
	if !ExecPage(v.Entries).valid() {
		return nil, protocol.Errorf(
			protocol.Internal,
			protocol.ReasonUndecodable,
			"a page of an index of execs is damaged",
		)
	}
	return v.Entries, nil
}

// NewestFirst sorts entries by their acceptance, the newest first, and removes entries whose acceptance is unknown.
func NewestFirst(all []ExecEntry) []ExecEntry {
	all = slices.DeleteFunc(all, func(e ExecEntry) bool { return e.Accepted == 0 })
	slices.SortFunc(all, func(a, b ExecEntry) int { return cmp.Compare(b.Sequence, a.Sequence) })
	return all
}

// Merge adds the entries of a page that was stored later. It combines the entries of the same exec.
func Merge(all []ExecEntry, later ExecPage) []ExecEntry {
	more := make(map[ExecHash]ExecEntry, later.Len())
	for i := range later.Len() {
		e := later.At(i)
		more[e.Hash] = e
	}
	for i := range all {
		if e, both := more[all[i].Hash]; both {
			all[i] = all[i].With(e)
			delete(more, e.Hash)
		}
	}
	for _, e := range more {
		all = append(all, e)
	}
	return all
}
