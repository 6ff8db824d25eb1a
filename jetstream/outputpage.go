package jetstream

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// A page of output is found by its offset. The messages of a log are stored in the order of their offsets, except
// messages that were sent again: such a message may come after up to outputReach bytes of later output. The position of
// a page is therefore found by binary search. If the page's first byte is not in the message at that position, earlier
// and later messages are searched.

const (
	// outputReach is how many bytes of output may be stored while an earlier byte is still missing.
	outputReach = OutputWindow * ChunkSize
	// pageSteps is the largest number of messages that are read for one page. Commands that print in many small pieces
	// get shorter pages.
	pageSteps = 64
	// replicaPause is the pause before a replica that is behind its leader is read again.
	replicaPause = 20 * time.Millisecond
)

// outputPager reads one page of one stream of a log.
type outputPager struct {
	output  *OutputLog
	sources *outputSources
	stream  string
	at      int64 // offset of the next byte to read
	limit   int
	page    *protocol.OutputPage
}

// OutputPage reads at most limit bytes of an output stream from an offset on. total is the stream's length if the
// command has ended, otherwise negative. If the requested bytes are no longer stored, the page begins after them and
// says how many bytes are missing. A page without data means that no more output is stored yet, unless the output has
// ended. Error: out_of_range for an offset beyond the end.
func (o *OutputLog) OutputPage(ctx context.Context, of OutputOf, stream string, offset int64, limit int, total int64) (
	*protocol.OutputPage, error) {
	p := &outputPager{
		output: o, sources: o.sources(of), stream: stream, at: offset, limit: limit,
		page: &protocol.OutputPage{
			Stream: stream, Offset: offset, Data: []byte{}, Ended: total >= 0, End: max(total, 0),
		},
	}
	if err := p.read(ctx, total); err != nil {
		return nil, err
	}
	p.page.Offset = p.at - int64(len(p.page.Data))
	p.page.Next, p.page.Missing = p.at, p.page.Offset-offset
	p.page.Oldest = min(p.page.Oldest, p.page.Offset)
	p.page.End = max(p.page.End, p.at)
	return p.page, nil
}

// beyondEnd refuses an offset that the output cannot have reached yet.
func (p *outputPager) beyondEnd() error {
	if p.at <= p.page.End || !p.page.Ended && p.at <= p.page.End+outputReach {
		return nil
	}
	e := protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd,
		"offset %d of %s is beyond its end at %d", p.at, p.stream, p.page.End)
	e.Field = "offset"
	return e
}

func (p *outputPager) read(ctx context.Context, total int64) error {
	last, err := p.sources.last(ctx)
	if protocol.CodeOf(err) == protocol.NotFound {
		return p.empty(total)
	}
	if err != nil {
		return err
	}
	end, err := p.position(last)
	if err != nil {
		return err
	}
	if total < 0 {
		p.page.End = end
	}
	first, err := p.oldest(ctx)
	if protocol.CodeOf(err) == protocol.NotFound { // the output was removed in the meantime
		return p.empty(total)
	}
	if err != nil {
		return err
	}
	if err := p.beyondEnd(); err != nil {
		return err
	}
	switch {
	case p.at >= p.page.End:
		return nil // no more output is stored yet, or the output has ended
	case end > p.at:
		found, err := p.bisect(ctx, p.at, first, last)
		if err != nil {
			return err
		}
		covers, err := p.take(found)
		if err != nil || covers {
			return p.extend(ctx, found.sequence, err)
		}
	}
	return p.search(ctx, first, last)
}

// empty makes the page of a log that no longer has messages. If the output has not ended, its length is then unknown: a
// reader gets an empty page at the requested offset.
func (p *outputPager) empty(total int64) error {
	if total < 0 {
		p.page.Oldest, p.page.End = p.at, p.at
		return nil
	}
	p.at = max(p.at, total) // all of the output was removed
	p.page.Oldest, p.page.End = total, total
	return p.beyondEnd()
}

// position returns how much of the stream was published when a message was stored, as far as the message shows.
func (p *outputPager) position(m *stored) (int64, error) {
	k, err := chunkOf(m.header, m.data)
	if k.Stream == p.stream {
		return k.Offset + int64(len(k.Data)), err
	}
	return p.vouched(&k), err
}

// vouched returns how much of a stream is stored without a gap once the chunk k is stored.
func (p *outputPager) vouched(k *Chunk) int64 {
	if p.stream == Stderr {
		return k.NextStderr
	}
	return k.NextStdout
}

// oldest reads the oldest message and sets the page's oldest stored byte.
func (p *outputPager) oldest(ctx context.Context) (first *stored, err error) {
	if first, err = p.sources.next(ctx, 1); err != nil {
		return nil, err
	}
	k, err := chunkOf(first.header, first.data)
	if err != nil {
		return nil, err
	}
	p.page.Oldest = p.vouched(&k)
	if k.Stream == p.stream {
		p.page.Oldest = k.Offset
	}
	return first, nil
}

// bisect finds the first message at which the stream's position is beyond an offset. At the message last, the position
// must be beyond the offset. If the position at the message first is also beyond the offset, bisect returns first.
func (p *outputPager) bisect(ctx context.Context, offset int64, first, last *stored) (*stored, error) {
	if at, err := p.position(first); err != nil || at > offset {
		return first, err
	}
	// The position at low is not beyond the offset. The position at found, the first message from high on, is beyond
	// it.
	low, high := first.sequence, last.sequence
	found := last
	for high-low > 1 {
		middle := low + (high-low)/2
		m, err := p.sources.next(ctx, middle)
		if protocol.CodeOf(err) == protocol.NotFound { // the messages from middle on were removed in the meantime
			high = middle
			continue
		}
		if err != nil {
			return nil, err
		}
		at, err := p.position(m)
		switch {
		case err != nil:
			return nil, err
		case m.sequence >= high:
			high = middle
		case at > offset:
			high, found = middle, m
		default:
			low = m.sequence
		}
	}
	return found, nil
}

// take adds the requested bytes of a message to the page. covers says whether the message has the next byte of the
// page.
func (p *outputPager) take(m *stored) (covers bool, err error) {
	k, err := chunkOf(m.header, m.data)
	end := k.Offset + int64(len(k.Data))
	if err != nil || k.Stream != p.stream || k.Offset > p.at || end <= p.at {
		return false, err
	}
	data := k.Data[p.at-k.Offset:]
	data = data[:min(len(data), p.limit-len(p.page.Data))]
	p.page.Data = append(p.page.Data, data...)
	p.at += int64(len(data))
	return true, nil
}

// extend adds the messages after a sequence, as far as they are stored in order.
func (p *outputPager) extend(ctx context.Context, after uint64, err error) error {
	for range pageSteps {
		if err != nil || len(p.page.Data) == p.limit {
			return err
		}
		m, err := p.sources.next(ctx, after+1)
		if protocol.CodeOf(err) == protocol.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := p.take(m); err != nil {
			return err
		}
		after = m.sequence
	}
	return nil
}

// search finds the next byte among all messages that may have it. If that byte was removed, search skips to the next
// stored byte. last is the newest message according to the leader.
func (p *outputPager) search(ctx context.Context, first, last *stored) error {
	from, err := p.bisect(ctx, p.at-outputReach-ChunkSize, first, last)
	if err != nil {
		return err
	}
	var found *stored
	var gone bool // the stored output is too far ahead for the byte to be still in flight
	next := int64(-1)
	inspect := func(m *stored) (bool, error) {
		k, err := chunkOf(m.header, m.data)
		if err != nil {
			return false, err
		}
		gone = gone || p.vouched(&k) > p.at
		if k.Stream == p.stream {
			switch end := k.Offset + int64(len(k.Data)); {
			case k.Offset <= p.at && end > p.at:
				found = m
			case k.Offset > p.at && (next < 0 || k.Offset < next):
				next = k.Offset
			}
			gone = gone || k.Offset > p.at+outputReach
		}
		return found == nil && k.Offset <= p.at+2*outputReach, nil
	}
	if err := p.scanTo(ctx, from.sequence, last.sequence, inspect); err != nil {
		return err
	}
	switch {
	case found != nil:
		_, err := p.take(found)
		return p.extend(ctx, found.sequence, err)
	case !p.page.Ended && !gone:
		return nil // the next byte is in flight
	case next < 0:
		p.at = p.page.End
		return nil
	}
	p.at = next
	from, err = p.bisect(ctx, next, first, last)
	if err != nil {
		return err
	}
	_, err = p.take(from)
	return p.extend(ctx, from.sequence, err)
}

// scanTo visits the messages of the log from one sequence to another, and possibly later messages. If the replica that
// answers does not have all of these messages yet, scanTo waits.
func (p *outputPager) scanTo(ctx context.Context, from, to uint64, visit func(*stored) (bool, error)) error {
	ctx, cancel := p.output.bound(ctx)
	defer cancel()
	for enough := false; ; {
		err := p.sources.visitAll(ctx, from, func(m *stored) (bool, error) {
			more, err := visit(m)
			from, enough = m.sequence+1, !more
			return more, err
		})
		if err != nil || enough || from > to {
			return err
		}
		if m, err := p.sources.last(ctx); err != nil || m.sequence < from {
			return err // the output was removed in the meantime
		}
		if !backoff.Sleep(ctx, replicaPause) {
			return ctx.Err()
		}
	}
}
