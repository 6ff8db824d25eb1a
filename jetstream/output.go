package jetstream

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// ChunkSize is the largest number of bytes of output in one message.
const ChunkSize = 256 << 10

// OutputWindow is how many chunks of one stream may be in flight. A chunk that was not stored, for example during an
// election, is sent again. At most OutputWindow later chunks are then stored before it.
const OutputWindow = 16

// Chunk is a piece of an exec's output.
type Chunk struct {
	Stream string // "stdout" or "stderr"
	Offset int64  // offset of the first byte in the stream
	Data   []byte

	// At is the time at which the chunk was stored; zero if the chunk was received live or is not stored yet.
	At time.Time

	// NextStdout and NextStderr are the offsets up to which each stream is stored without a gap once this chunk is
	// stored. A publisher therefore needs only the last chunk to know where to continue.
	NextStdout, NextStderr int64
}

// Names of the streams of an exec.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// OutputLog stores and reads the output of execs.
type OutputLog struct {
	*streams

	earlier earlierOutput
}

// PublishOutput sends a chunk from a host and returns before the chunk is acknowledged; the returned channel delivers
// the result. Chunks of one exec are stored in the order in which they are sent, except as described at [OutputWindow].
// log is an exec's id, a [protocol.ServiceLog] or [protocol.PrimaryLog].
func (o *OutputLog) PublishOutput(host, tenant, sandbox, log string, k Chunk) (<-chan error, error) {
	m := nats.NewMsg(o.outputSubject(host, tenant, sandbox, log))
	m.Header[protocol.HeaderStream] = []string{k.Stream}
	m.Header[protocol.HeaderOffset] = []string{strconv.FormatInt(k.Offset, 10)}
	m.Header[protocol.HeaderNextOut] = []string{strconv.FormatInt(k.NextStdout, 10)}
	m.Header[protocol.HeaderNextErr] = []string{strconv.FormatInt(k.NextStderr, 10)}
	m.Data = k.Data
	future, err := o.js.PublishMsgAsync(m)
	if err != nil {
		return nil, translate(err, "publish output")
	}
	done := make(chan error, 1)
	go func() {
		t := time.NewTimer(o.timeout)
		defer t.Stop()
		select {
		case <-future.Ok():
			done <- nil
		case err := <-future.Err():
			done <- o.orEarlier(err, m.Subject)
		case <-t.C:
			done <- protocol.Errorf(protocol.DeadlineExceeded, "", "publish output: no answer in time")
		}
	}()
	return done, nil
}

// Reconnects returns the number of reconnects so far.
func (c *connection) Reconnects() uint64 { return c.nc.Stats().Reconnects }

// MayLoseOutput reports whether the server may lose output that it acknowledged shortly before it was killed, because a
// single server acknowledges output before it writes the output to disk. [Conn.Open] must have succeeded.
func (o *OutputLog) MayLoseOutput() bool { return o.singleReplica() }

// OutputEnd reads the offsets up to which output is stored without a gap. Some later output may be stored too.
func (o *OutputLog) OutputEnd(ctx context.Context, of OutputOf) (stdout, stderr int64, err error) {
	m, err := o.sources(of).last(ctx)
	if protocol.CodeOf(err) == protocol.NotFound {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	k, err := chunkOf(m.header, m.data)
	return k.NextStdout, k.NextStderr, err
}

// ReadOutput reads the stored chunks of an output in the order of their records, from a record of the output's stream
// on. It returns the record after the last chunk. A chunk may come twice, or after chunks with larger offsets, so
// callers compare offsets.
func (o *OutputLog) ReadOutput(ctx context.Context, of OutputOf, from uint64, visit func(Chunk) error) (
	next uint64, err error) {
	next = from
	var failed error
	err = o.ReadStoredOutput(ctx, of, from, func(record uint64, k Chunk) bool {
		next = record + 1
		failed = visit(k)
		return failed == nil
	})
	return next, cmp.Or(failed, err)
}

// ReadStoredOutput is like ReadOutput, but also passes the record of each chunk to visit, and ends when visit returns
// false.
func (o *OutputLog) ReadStoredOutput(ctx context.Context, of OutputOf, from uint64,
	visit func(record uint64, k Chunk) bool) error {
	return o.sources(of).visitAll(ctx, from, func(m *stored) (bool, error) {
		k, err := chunkOf(m.header, m.data)
		if err != nil {
			return false, err
		}
		k.At = m.storedAt()
		return visit(m.sequence, k), nil
	})
}

// LiveOutput receives chunks as they are published, until stop is called. Chunks are missed while the connection is
// down; the offsets then show a gap. The workers of other hosts can publish output for the same log too, so the caller
// compares the chunk's host with the sandbox's.
func (o *OutputLog) LiveOutput(tenant, sandbox, log string, handle func(host string, k Chunk)) (
	stop func(), err error) {
	sub, err := o.nc.Subscribe(protocol.OutputSubject("*", tenant, sandbox, log), func(m *nats.Msg) {
		host, _, _, _, ok := protocol.SplitOutputSubject(m.Subject)
		k, err := chunkOf(m.Header, m.Data)
		if err != nil || !ok {
			o.log.Warn("could not decode a chunk of output", "subject", m.Subject, "error", err)
			return
		}
		handle(host, k)
	})
	if err != nil {
		return nil, translate(err, "listen for output")
	}
	if err := sub.SetPendingLimits(4096, 256<<20); err != nil {
		return nil, translate(err, "listen for output")
	}
	var once sync.Once
	return func() { once.Do(func() { _ = sub.Unsubscribe() }) }, nil // fails only when the connection is closed
}

func chunkOf(h nats.Header, data []byte) (Chunk, error) {
	k := Chunk{Stream: h.Get(protocol.HeaderStream), Data: data}
	for _, f := range []struct {
		header string
		value  *int64
	}{
		{protocol.HeaderOffset, &k.Offset},
		{protocol.HeaderNextOut, &k.NextStdout},
		{protocol.HeaderNextErr, &k.NextStderr},
	} {
		v, err := strconv.ParseInt(h.Get(f.header), 10, 64)
		if err != nil || v < 0 {
			return k, undecodable("a chunk of output has no valid header %s", f.header)
		}
		*f.value = v
	}
	if k.Stream != Stdout && k.Stream != Stderr {
		return k, undecodable("a chunk of output belongs to stream %.20q", k.Stream)
	}
	return k, nil
}

func undecodable(format string, args ...any) error {
	return protocol.Errorf(protocol.Internal, protocol.ReasonUndecodable, format, args...)
}
