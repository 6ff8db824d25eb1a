package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/coordinator/execindex"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Execs that ended long ago are only in the log. The index says which records have the events of an exec. Only these
// records are read, so the cost of a read does not grow with the history.

func (rd *reader) getExec(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	k := key{Tenant: tenant, ID: q.Sandbox}
	j, err := rd.projection.findFresh(ctx, k, q.MinSequence)
	if err != nil {
		return nil, err
	}
	x, sequence, err := rd.pastExec(ctx, j, k, q.Exec, rd.getting)
	if err == nil && x == nil { // memory may lag behind the log
		at := j.Position()
		if err = j.Refresh(ctx); err == nil && j.Position() != at {
			x, sequence, err = rd.pastExec(ctx, j, k, q.Exec, rd.getting)
		}
	}
	if err == nil && x == nil {
		err = errNoExec()
	}
	return &protocol.Reply{Exec: x, Sequence: sequence}, err
}

// pastExec finds an exec in memory, or reads it from the log if it ended long ago. It returns nil if the history has no
// such exec. The parameter slots limits concurrent reads of the log; nil: the caller limits them.
func (c *coordinator) pastExec(
	ctx context.Context, j *jetstream.Journal, k key, id string, slots *readSlots,
) (x *protocol.Exec, sequence uint64, err error) {
	everything := false
	j.View(func(s *protocol.State, _ uint64) {
		x, sequence, everything = s.Execs[id], s.Sandbox.Sequence, s.Sandbox.TotalExecs <= len(s.Execs)
		c.projection.execs.EnsureCovers(k, s)
	})
	if x != nil || everything {
		return x, sequence, nil
	}
	if slots != nil {
		release, err := slots.take(ctx, k.Tenant)
		if err != nil {
			return nil, 0, err
		}
		defer release()
	}
	entry, found, _, err := c.projection.execs.Find(ctx, k, id)
	if err != nil || !found || entry.Accepted == 0 {
		return nil, sequence, err
	}
	x, err = execindex.Read(ctx, k, entry, c.conn.Batch)
	return x, sequence, err
}

func (rd *reader) listExecs(ctx context.Context, tenant string, q *protocol.Query) (*protocol.Reply, error) {
	for i, s := range q.States {
		switch state := protocol.ExecState(s); {
		case state.Terminal(), state == protocol.ExecStateAccepted, state == protocol.ExecStateRunning:
		default:
			return nil, protocol.Invalid(fmt.Sprintf("states[%d]", i), "is not a state of an exec: %.40q", s)
		}
	}
	k := key{Tenant: tenant, ID: q.Sandbox}
	j, err := rd.projection.findFresh(ctx, k, q.MinSequence)
	if err != nil {
		return nil, err
	}
	var known []*protocol.Exec // the newest first
	var sequence uint64
	everything := false
	j.View(func(s *protocol.State, _ uint64) {
		for _, x := range s.Execs {
			known = append(known, x)
		}
		sequence, everything = s.Sandbox.Sequence, s.Sandbox.TotalExecs <= len(s.Execs)
		rd.projection.execs.EnsureCovers(k, s)
	})
	slices.SortFunc(known, func(a, b *protocol.Exec) int { return cmp.Compare(b.AcceptSequence, a.AcceptSequence) })
	page, err := newExecPage(q, sequence)
	if err != nil {
		return nil, err
	}
	if everything {
		for _, x := range known {
			if page.wants(x.AcceptSequence, x.State) && !page.add(x) {
				break
			}
		}
	} else if err := rd.listPastExecs(ctx, k, known, page); err != nil {
		return nil, err
	}
	return &protocol.Reply{Execs: page.execs, Next: page.next, Sequence: sequence}, nil
}

// listPastExecs fills a page from the index. Execs that are in memory are not read from the log.
func (rd *reader) listPastExecs(ctx context.Context, k key, known []*protocol.Exec, page *execPage) error {
	release, err := rd.listing.take(ctx, k.Tenant)
	if err != nil {
		return err
	}
	defer release()
	all, err := rd.projection.execs.All(ctx, k)
	if err != nil {
		return err
	}
	inMemory := make(map[jetstream.ExecHash]*protocol.Exec, len(known))
	for _, x := range known {
		inMemory[jetstream.HashExec(x.ID)] = x
	}
	read := execindex.ShareReads(rd.conn.Batch)
	var next []jetstream.ExecEntry
	fill := func() (more bool, err error) {
		execs := make([]*protocol.Exec, len(next))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(recordsAtOnce)
		for i, entry := range next {
			if execs[i] = inMemory[entry.Hash]; execs[i] == nil {
				group.Go(func() (err error) {
					execs[i], err = execindex.Read(ctx, k, entry, read)
					return err
				})
			}
		}
		if err := group.Wait(); err != nil {
			return false, err
		}
		next = next[:0]
		for _, x := range execs {
			if x != nil && page.wants(x.AcceptSequence, x.State) && !page.add(x) {
				return false, nil
			}
		}
		return true, nil
	}
	for entry := range all {
		state := entry.State
		if x := inMemory[entry.Hash]; x != nil {
			state = x.State
		}
		if !page.wants(entry.Sequence, state) {
			continue
		}
		if next = append(next, entry); len(next) < 2*recordsAtOnce {
			continue
		}
		if more, err := fill(); !more || err != nil {
			return err
		}
	}
	_, err = fill()
	return err
}

// execPage is a page of a list of execs, the newest first, while the page is filled. Its token identifies the last row
// by the number of the event that accepted the exec. So if rows appear between two pages, no other row is repeated or
// skipped.
type execPage struct {
	q     *protocol.Query
	under uint64 // the page has only execs whose accepting event has a smaller number
	size  int
	execs []*protocol.Exec
	next  string
}

const execToken = "x."

func newExecPage(q *protocol.Query, last uint64) (*execPage, error) {
	p := &execPage{q: q, under: last + 1}
	if q.Page == "" {
		return p, nil
	}
	number, ok := strings.CutPrefix(q.Page, execToken)
	under, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return nil, protocol.Invalid("page", "is not a page token of this list: begin with its first page")
	}
	p.under = min(under, p.under)
	return p, nil
}

func (p *execPage) wants(sequence uint64, state protocol.ExecState) bool {
	return sequence < p.under && (len(p.q.States) == 0 || slices.Contains(p.q.States, string(state)))
}

// add adds a row. If the page is full, it sets the token of the next page instead and returns false.
func (p *execPage) add(x *protocol.Exec) bool {
	n := encoded(x)
	if len(p.execs) == p.q.Limit || len(p.execs) > 0 && p.size+n > maxPage {
		p.next = execToken + strconv.FormatUint(p.execs[len(p.execs)-1].AcceptSequence, 10)
		return false
	}
	p.execs, p.size = append(p.execs, x), p.size+n
	return true
}
