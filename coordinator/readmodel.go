package coordinator

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// readModel is the data that reads are answered from: the handles of living sandboxes, an entry of at most 300 bytes
// for each deleted sandbox, and indexes of names and ids.
type readModel struct {
	mu *sync.RWMutex // the projection's lock

	sandboxes   map[key]*protocol.Sandbox // living sandboxes; a handle is replaced on each change, never modified
	livingIDs   idIndex                   // generated ids of living sandboxes
	livingNames map[key]string            // ids of living sandboxes, by tenant and name

	deleted      map[key]deletedEntry // all deleted sandboxes whose history is kept
	deletedIDs   idIndex              // generated ids of deleted sandboxes
	firstDeleted int64                // no sandbox was deleted before this time, in ns since 1970; 0: unknown
	deletedRead  signal               // the stored deleted sandboxes have been read

	tenants map[string]string // names of tenants, each stored once
}

func newReadModel(mu *sync.RWMutex) *readModel {
	return &readModel{
		mu: mu, sandboxes: map[key]*protocol.Sandbox{}, livingNames: map[key]string{},
		deleted: map[key]deletedEntry{}, deletedRead: newSignal(), tenants: map[string]string{},
	}
}

// deletedEntry is the part of a deleted sandbox that stays in memory. Everything else is read on demand, from the
// sandbox's last snapshot or from the log. An entry takes at most 300 bytes, including its key, the bytes of its id,
// and its place in the map.
type deletedEntry struct {
	created, ended int64  // ns since 1970
	record         uint64 // record of the sandbox's last batch
	labels         uint64 // the sandbox's labels and name, see [labelSet]
	saved          bool   // the sandbox's last snapshot is stored
	named          bool   // the sandbox has a name
}

func deletedEntryOf(b *protocol.Sandbox, record uint64) deletedEntry {
	return deletedEntry{
		created: b.CreatedAt.UnixNano(), ended: b.StateChangedAt.UnixNano(), record: record,
		labels: labelSet(b.Spec.Labels, b.Name), named: b.Name != "",
	}
}

func deletedEntryOfRecord(r *jetstream.EndedRecord) deletedEntry {
	return deletedEntry{
		created: r.CreatedAt.UnixNano(), ended: r.EndedAt.UnixNano(), record: r.Record,
		labels: labelSet(r.Labels, r.Name), named: r.Name != "", saved: true,
	}
}

var labelSeed = maphash.MakeSeed()

// labelSet encodes labels and a name as a set of 64 bits. Each label sets two of the bits, and so does the name. If a
// selector has a bit outside a sandbox's set, the sandbox does not match. Otherwise the sandbox may match, and the
// labels and the name themselves must be compared.
func labelSet(labels map[string]string, name string) (set uint64) {
	add := func(k, v string) {
		h := maphash.Comparable(labelSeed, [2]string{k, v})
		set |= 1<<(h&63) | 1<<(h>>6&63)
	}
	for k, v := range labels {
		add(k, v)
	}
	if name != "" {
		add("", name) // no label has an empty key
	}
	return set
}

// putLocked stores the handle of a living sandbox and returns the previous handle, or nil if there was no handle.
func (r *readModel) putLocked(k key, b *protocol.Sandbox) (before *protocol.Sandbox) {
	r.forgetDeletedLocked(k)
	before = r.sandboxes[k]
	if before == nil {
		r.livingIDs.add(k)
	}
	r.renameLocked(k, before, b)
	r.sandboxes[k] = b
	return before
}

// dropLocked removes a sandbox and returns its handle, or nil if the sandbox was not living.
func (r *readModel) dropLocked(k key) (before *protocol.Sandbox) {
	before = r.removeLivingLocked(k)
	r.forgetDeletedLocked(k)
	return before
}

func (r *readModel) removeLivingLocked(k key) (before *protocol.Sandbox) {
	before = r.sandboxes[k]
	r.renameLocked(k, before, nil)
	delete(r.sandboxes, k)
	r.livingIDs.remove(k)
	return before
}

// retireLocked replaces a sandbox's handle by the entry of a deleted sandbox, and returns its last handle. It returns
// false, and changes nothing, if a newer entry is known.
func (r *readModel) retireLocked(k key, d deletedEntry) (before *protocol.Sandbox, newest bool) {
	if known, again := r.deleted[k]; again {
		if known.record > d.record {
			return nil, false
		}
		d.saved = d.saved || known.saved && known.record == d.record
	}
	before = r.removeLivingLocked(k)
	k = r.ownStringsLocked(k)
	r.deleted[k] = d
	r.deletedIDs.add(k)
	if r.firstDeleted == 0 || d.ended < r.firstDeleted {
		r.firstDeleted = d.ended
	}
	return before, true
}

// ownStringsLocked returns a key with its own copies of the strings. With the strings of a message, the key would keep
// the whole message in memory. All keys of a tenant share one copy of the tenant's name.
func (r *readModel) ownStringsLocked(k key) key {
	tenant, known := r.tenants[k.Tenant]
	if !known {
		tenant = strings.Clone(k.Tenant)
		r.tenants[tenant] = tenant
	}
	return key{Tenant: tenant, ID: strings.Clone(k.ID)}
}

func (r *readModel) forgetDeletedLocked(k key) {
	if _, deleted := r.deleted[k]; deleted {
		delete(r.deleted, k)
		r.deletedIDs.remove(k)
	}
}

func (r *readModel) clearDeletedLocked() {
	clear(r.deleted)
	r.deletedIDs = idIndex{}
}

// savedLocked marks a deleted sandbox whose last snapshot is stored. It returns false if the entry has changed since
// that snapshot was taken.
func (r *readModel) savedLocked(k key, record uint64) bool {
	d, deleted := r.deleted[k]
	if !deleted || d.record != record {
		return false
	}
	d.saved = true
	r.deleted[k] = d
	return true
}

// renameLocked updates the index of names after a sandbox has changed. after is nil if the sandbox is no longer living.
func (r *readModel) renameLocked(k key, before, after *protocol.Sandbox) {
	named := func(name string) key { return key{Tenant: k.Tenant, ID: name} }
	if before != nil && before.Name != "" && r.livingNames[named(before.Name)] == k.ID {
		delete(r.livingNames, named(before.Name))
	}
	if after != nil && after.Name != "" && after.State.ReservesName() {
		r.livingNames[named(after.Name)] = k.ID
	}
}

// get returns the handle of a living sandbox, or nil if the sandbox is not living.
func (r *readModel) get(k key) *protocol.Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sandboxes[k]
}

// endedAt reports whether a sandbox is living. For a deleted sandbox it also returns the record of its last batch;
// otherwise 0.
func (r *readModel) endedAt(k key) (living bool, record uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sandboxes[k] != nil, r.deleted[k].record
}

// living returns the handles of all living sandboxes.
func (r *readModel) living() (list []*protocol.Sandbox) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list = make([]*protocol.Sandbox, 0, len(r.sandboxes))
	for _, b := range r.sandboxes {
		list = append(list, b)
	}
	return list
}

// livingOf returns the handles of a tenant's living sandboxes.
func (r *readModel) livingOf(tenant string) (list []*protocol.Sandbox) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for k, b := range r.sandboxes {
		if k.Tenant == tenant {
			list = append(list, b)
		}
	}
	return list
}

// tenantNames returns the tenants of all sandboxes, including deleted sandboxes whose history is still stored.
func (r *readModel) tenantNames() map[string]struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := map[string]struct{}{}
	for k := range r.sandboxes {
		names[k.Tenant] = struct{}{}
	}
	for k := range r.deleted {
		names[k.Tenant] = struct{}{}
	}
	return names
}

// replaceableWithCopies returns the sandboxes that have uploaded trees and that must be created again on another host
// if their host is lost.
func (r *readModel) replaceableWithCopies() (list []*protocol.Sandbox) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, b := range r.sandboxes {
		if replaces(b) && len(b.Spec.Copies) > 0 {
			list = append(list, b)
		}
	}
	return list
}

// knows reports whether a sandbox is living or deleted.
func (r *readModel) knows(k key) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, deleted := r.deleted[k]
	return deleted || r.sandboxes[k] != nil
}

func (r *readModel) isDeleted(k key) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, deleted := r.deleted[k]
	return deleted
}

// deletedHasName reports whether a sandbox is deleted and had a name.
func (r *readModel) deletedHasName(k key) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.deleted[k].named
}

// named returns the id of the living sandbox that holds a name, or "".
func (r *readModel) named(tenant, name string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.livingNames[key{Tenant: tenant, ID: name}]
}

// maxCandidates is how many ids an error lists for an ambiguous prefix.
const maxCandidates = 5

// withPrefix returns the generated id that begins with a prefix. Deleted sandboxes count only if no living sandbox
// matches. It returns not_found if no id begins with the prefix, and failed_precondition if several do.
func (r *readModel) withPrefix(tenant, prefix string) (string, error) {
	r.mu.RLock()
	found := r.livingIDs.withPrefix(tenant, prefix, maxCandidates+1)
	if len(found) == 0 {
		found = r.deletedIDs.withPrefix(tenant, prefix, maxCandidates+1)
	}
	r.mu.RUnlock()
	incomplete := !r.deletedRead.isGiven()
	switch {
	case incomplete && (len(found) == 0 || len(found) == 1 && r.isDeleted(key{Tenant: tenant, ID: found[0]})):
		return "", errStillReadingDeleted()
	case len(found) == 0:
		return "", errNoSandbox()
	case len(found) == 1:
		return found[0], nil
	}
	more := ""
	if len(found) > maxCandidates {
		found, more = found[:maxCandidates], " and others"
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonAmbiguousPrefix,
		"%s is the beginning of several ids: %s%s", prefix, strings.Join(found, ", "), more)
	e.Field = "sandbox"
	return "", e
}

func errStillReadingDeleted() error {
	return protocol.Errorf(protocol.Unavailable, "",
		"the coordinator is still reading the stored records of deleted sandboxes; try again")
}

// deletedBefore lists at most limit sandboxes that were deleted before t.
func (r *readModel) deletedBefore(t time.Time, limit int) (list []key) {
	before := t.UnixNano()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.firstDeleted == 0 || r.firstDeleted >= before {
		return nil
	}
	first := int64(0)
	for k, d := range r.deleted {
		if d.ended < before && len(list) < limit {
			list = append(list, k)
		}
		if first == 0 || d.ended < first {
			first = d.ended
		}
	}
	r.firstDeleted = first
	return list
}

// deletedRow is a row in the list of deleted sandboxes.
type deletedRow struct {
	key   key
	token string // the row's page token, see [pageToken]
}

// deletedPage lists at most limit deleted sandboxes of a tenant that come after a page token, the newest first. It
// finds sandboxes whose labels may match the selector; the caller must still compare the labels themselves.
func (r *readModel) deletedPage(tenant, after string, labels uint64, limit int) (list []deletedRow) {
	r.mu.RLock()
	for k, d := range r.deleted {
		if k.Tenant != tenant || d.labels&labels != labels {
			continue
		}
		if row := (deletedRow{k, pageToken(time.Unix(0, d.created), k.ID)}); row.token > after {
			list = append(list, row)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(list, func(a, b deletedRow) int { return cmp.Compare(a.token, b.token) })
	return list[:min(len(list), limit)]
}

// readDeleted reads the last snapshots of deleted sandboxes into the read model. It runs in the background.
func (p *projection) readDeleted(ctx context.Context) error {
	var behind []key
	err := p.conn.ReadEndedRecord(ctx, func(r *jetstream.EndedRecord) {
		k := key{Tenant: r.Tenant, ID: r.Sandbox}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.read.sandboxes[k] != nil { // the sandbox's end is not folded yet, or its history began again
			behind = append(behind, key{Tenant: strings.Clone(k.Tenant), ID: strings.Clone(k.ID)})
			return
		}
		p.retireLocked(k, deletedEntryOfRecord(r))
	})
	if err == nil {
		err = p.readHistories(ctx, behind)
	}
	if err == nil {
		p.read.deletedRead.give()
	}
	return err
}
