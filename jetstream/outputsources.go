package jetstream

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
)

// Output is stored under subjects that name the host of the worker that published it. Each read therefore uses one
// literal subject for each host that the sandbox was on. There is nearly always one such host. One more subject, which
// names no host, has the output of workers of earlier versions. Reads with wildcards would get slower as other
// sandboxes store more output.

// OutputOf names the output of an exec, a service or a sandbox's own command, and says who may have published it.
type OutputOf struct {
	Tenant, Sandbox string
	Log             string                // an exec's id, a protocol.ServiceLog or protocol.PrimaryLog
	Hosts           []protocol.OutputHost // from [protocol.State.OutputHosts]; output of other hosts is not read
}

// outputSource is a subject under which some of the output is stored.
type outputSource struct {
	subject string
	times   []protocol.OutputHost // when the output may have been stored; empty: at any time
}

// outputSources reads the messages of all sources in the order of their records.
type outputSources struct {
	*streams

	all []outputSource // output is being added to the last source
}

func (o *OutputLog) sources(of OutputOf) *outputSources {
	s := &outputSources{streams: o.streams}
	s.all = append(s.all, outputSource{subject: protocol.LogSubject(of.Tenant, of.Sandbox, of.Log)})
	for i := len(of.Hosts) - 1; i >= 0; i-- {
		host := of.Hosts[i]
		s.add(protocol.OutputSubject(host.ID, of.Tenant, of.Sandbox, of.Log), host)
	}
	if len(s.all) > 1 { // the newest host was added first
		s.all[1], s.all[len(s.all)-1] = s.all[len(s.all)-1], s.all[1]
	}
	return s
}

func (s *outputSources) add(subject string, at protocol.OutputHost) {
	for i := range s.all {
		if s.all[i].subject == subject {
			s.all[i].times = append(s.all[i].times, at)
			return
		}
	}
	s.all = append(s.all, outputSource{subject, []protocol.OutputHost{at}})
}

// covers reports whether the message was stored while its host's worker could publish output of the sandbox.
func (s *outputSource) covers(m *stored) bool {
	for _, t := range s.times {
		if t.Covers(m.storedAt()) {
			return true
		}
	}
	return len(s.times) == 0
}

// over reports whether a message was stored too late to be output of the sandbox. In that case, all later messages are
// too late as well.
func (s *outputSource) over(m *stored) bool {
	for _, t := range s.times {
		if t.Until.IsZero() || !m.storedAt().After(t.Until) {
			return false
		}
	}
	return len(s.times) > 0
}

// storedAt returns when a message that was read from a stream was stored.
func (m *stored) storedAt() time.Time {
	if m.time.IsZero() {
		m.time, _ = time.Parse(time.RFC3339Nano, m.header.Get("Nats-Time-Stamp")) // the server writes a valid time
	}
	return m.time
}

var errNoOutput = protocol.Errorf(protocol.NotFound, "", "no output is stored")

// nextIn reads the first message of a source at or after a sequence. Error: not_found.
func (s *outputSources) nextIn(ctx context.Context, source *outputSource, from uint64) (*stored, error) {
	for from = max(from, 1); ; {
		m, err := s.nextOnSubject(ctx, protocol.StreamLogs, source.subject, from)
		if err != nil || source.covers(m) {
			return m, err
		}
		if source.over(m) {
			return nil, errNoOutput
		}
		// This message is forged: the sandbox was not on the host yet. There may be many forged messages.
		from = m.sequence + 1
		err = s.scan(ctx, protocol.StreamLogs, source.subject, from, func(m *stored) (bool, error) {
			if source.covers(m) || source.over(m) {
				return false, nil
			}
			from = m.sequence + 1
			return true, nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// lastIn reads the last message of a source. Error: not_found.
func (s *outputSources) lastIn(ctx context.Context, source *outputSource) (*stored, error) {
	last, err := s.lastOnSubject(ctx, protocol.StreamLogs, source.subject)
	if err != nil || source.covers(last) {
		return last, err
	}
	// The last messages are forged: the sandbox had left the host before they were stored.
	found, err := s.nextIn(ctx, source, 1)
	if err != nil {
		return nil, err
	}
	for low, high := found.sequence, last.sequence; high-low > 1; {
		middle := low + (high-low)/2
		m, err := s.nextOnSubject(ctx, protocol.StreamLogs, source.subject, middle)
		switch {
		case protocol.CodeOf(err) == protocol.NotFound: // the messages at and after middle were removed in the meantime
			high = middle
		case err != nil:
			return nil, err
		case m.sequence >= high:
			high = middle
		case source.over(m):
			high = m.sequence
		default:
			low = m.sequence
			if source.covers(m) {
				found = m
			}
		}
	}
	return found, nil
}

// The method "each" reads one message from every one of the first n sources. If a source has no message, its element in
// the result is nil.
func (s *outputSources) each(ctx context.Context, n int,
	read func(context.Context, *outputSource) (*stored, error)) (all []*stored, err error) {
	all = make([]*stored, n)
	if n == 1 { // a single source needs no goroutine
		all[0], err = read(ctx, &s.all[0])
		return all, orNone(err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		group.Go(func() (err error) {
			all[i], err = read(ctx, &s.all[i])
			return orNone(err)
		})
	}
	return all, group.Wait()
}

func orNone(err error) error {
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil
	}
	return err
}

// last reads the newest message of all sources. It drops the sources without messages. Error: not_found.
func (s *outputSources) last(ctx context.Context) (last *stored, err error) {
	all, err := s.each(ctx, len(s.all), s.lastIn)
	if err != nil {
		return nil, err
	}
	var kept []outputSource
	for i, m := range all {
		if m == nil {
			continue
		}
		kept = append(kept, s.all[i])
		if last == nil || m.sequence > last.sequence {
			last = m
		}
	}
	if last == nil {
		return nil, errNoOutput
	}
	s.all = kept
	return last, nil
}

// next reads the first message at or after a sequence. Error: not_found.
func (s *outputSources) next(ctx context.Context, from uint64) (*stored, error) {
	all, err := s.each(ctx, len(s.all), s.nextFrom(from))
	if err != nil {
		return nil, err
	}
	if i := earliest(all); i >= 0 {
		return all[i], nil
	}
	return nil, errNoOutput
}

func (s *outputSources) nextFrom(from uint64) func(context.Context, *outputSource) (*stored, error) {
	return func(ctx context.Context, source *outputSource) (*stored, error) { return s.nextIn(ctx, source, from) }
}

// earliest returns the index of the message with the smallest sequence, or -1 if there is none.
func earliest(all []*stored) int {
	found := -1
	for i, m := range all {
		if m != nil && (found < 0 || m.sequence < all[found].sequence) {
			found = i
		}
	}
	return found
}

// visitAll visits the messages from a sequence on, in order, until visit returns false. In a cluster, the newest
// messages may be missing, as in [streams.scan].
func (s *outputSources) visitAll(ctx context.Context, from uint64, visit func(*stored) (bool, error)) error {
	err := s.visitEach(ctx, from, visit)
	if isReason(err, protocol.ReasonNotProvisioned) { // the stream is being made again, with more replicas
		err = protocol.Errorf(protocol.Unavailable, "", "%s", protocol.AsError(err).Message)
	}
	return err
}

func (s *outputSources) visitEach(ctx context.Context, from uint64, visit func(*stored) (bool, error)) error {
	newest := len(s.all) - 1
	var heads []*stored // the next message of each source
	if newest > 0 {
		var err error
		if heads, err = s.each(ctx, newest, s.nextFrom(from)); err != nil {
			return err
		}
	}
	if earliest(heads) < 0 {
		_, _, err := s.visitIn(ctx, &s.all[newest], from, nil, visit)
		return err
	}
	head, err := s.nextIn(ctx, &s.all[newest], from)
	if orNone(err) != nil {
		return err
	}
	for heads = append(heads, head); ; {
		i := earliest(heads)
		if i < 0 {
			return nil
		}
		head, heads[i] = heads[i], nil
		if more, err := visit(head); err != nil || !more {
			return err
		}
		var stop *stored // the next message of the other sources
		if j := earliest(heads); j >= 0 {
			stop = heads[j]
		}
		next, enough, err := s.visitIn(ctx, &s.all[i], head.sequence+1, stop, visit)
		if err != nil || enough || stop == nil {
			return err
		}
		// The replica that was read may be behind. The leader says whether there are more messages before stop.
		if heads[i], err = s.nextIn(ctx, &s.all[i], next); orNone(err) != nil {
			return err
		}
	}
}

// visitIn visits the messages of one source, from a sequence up to the sequence of the message stop. If stop is nil,
// visitIn visits all later messages. next is the sequence after the last visited message. enough is true if visit
// returned false.
func (s *outputSources) visitIn(ctx context.Context, source *outputSource, from uint64, stop *stored,
	visit func(*stored) (bool, error)) (next uint64, enough bool, err error) {
	next = from
	err = s.scan(ctx, protocol.StreamLogs, source.subject, from, func(m *stored) (bool, error) {
		if stop != nil && m.sequence > stop.sequence || source.over(m) {
			return false, nil
		}
		next = m.sequence + 1
		if !source.covers(m) {
			return true, nil
		}
		more, err := visit(m)
		enough = !more
		return more, err
	})
	return next, enough, err
}
