package jetstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// ChunkSize is how many bytes of output one message carries at most.
const ChunkSize = 256 << 10

// OutputWindow is how many chunks of one stream may be on their way at once. One that is not taken,
// while a leader is elected, is sent again: it is then stored behind some that follow it, by so many
// at most.
const OutputWindow = 16

// Chunk is a piece of an exec's output.
type Chunk struct {
	Stream string // "stdout" or "stderr"
	Offset int64  // of the first byte in its stream
	Data   []byte

	// At is when it was stored; zero where it is heard live, or was not stored yet.
	At time.Time

	// NextStdout and NextStderr are the offsets up to which everything is stored once this chunk is,
	// so that who publishes can go on from the last chunk alone.
	NextStdout, NextStderr int64
}

// Names of the streams of an exec.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// PublishOutput sends a chunk and returns before it is acknowledged; the channel gives the result.
// Chunks of one exec that are sent one after another are stored in that order, but see [OutputWindow].
func (c *Conn) PublishOutput(tenant, sandbox, exec string, k Chunk) (<-chan error, error) {
	m := nats.NewMsg(protocol.LogSubject(tenant, sandbox, exec))
	m.Header[protocol.HeaderStream] = []string{k.Stream}
	m.Header[protocol.HeaderOffset] = []string{strconv.FormatInt(k.Offset, 10)}
	m.Header[protocol.HeaderNextOut] = []string{strconv.FormatInt(k.NextStdout, 10)}
	m.Header[protocol.HeaderNextErr] = []string{strconv.FormatInt(k.NextStderr, 10)}
	m.Data = k.Data
	future, err := c.js.PublishMsgAsync(m)
	if err != nil {
		return nil, translate(err, "publish output")
	}
	done := make(chan error, 1)
	go func() {
		t := time.NewTimer(c.timeout)
		defer t.Stop()
		select {
		case <-future.Ok():
			done <- nil
		case err := <-future.Err():
			done <- translateWrite(err, m.Subject)
		case <-t.C:
			done <- protocol.Errorf(protocol.DeadlineExceeded, "", "publish output: no answer in time")
		}
	}()
	return done, nil
}

// Reconnects counts the times that the connection was made again.
func (c *Conn) Reconnects() uint64 { return c.nc.Stats().Reconnects }

// MayLoseOutput says whether the server may lose output that it acknowledged a moment before it was
// killed: a single one writes it to disk a little later. [Conn.Open] must have succeeded.
func (c *Conn) MayLoseOutput() bool { return c.singleReplica() }

// OutputEnd reads how far the output of an exec was published without a gap. Some of what follows may
// be stored, too.
func (c *Conn) OutputEnd(ctx context.Context, tenant, sandbox, exec string) (stdout, stderr int64, err error) {
	m, err := c.lastOnSubject(ctx, protocol.StreamLogs, protocol.LogSubject(tenant, sandbox, exec))
	if protocol.CodeOf(err) == protocol.NotFound {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	k, err := chunkOf(m.header, m.data)
	return k.NextStdout, k.NextStderr, err
}

// ReadOutput reads the stored chunks of an exec in the order in which they were stored, from a record
// of the output stream on. It returns the record after the last one. A chunk may come twice, and
// behind some that follow it; its offset tells.
func (c *Conn) ReadOutput(ctx context.Context, tenant, sandbox, exec string, from uint64, visit func(Chunk) error) (next uint64, err error) {
	next = from
	err = c.scan(ctx, protocol.StreamLogs, protocol.LogSubject(tenant, sandbox, exec), from, func(m *stored) (bool, error) {
		k, err := chunkOf(m.header, m.data)
		if err != nil {
			return false, err
		}
		next = m.sequence + 1
		k.At, _ = time.Parse(time.RFC3339Nano, m.header.Get("Nats-Time-Stamp")) // the server's own
		return true, visit(k)
	})
	return next, err
}

// LiveOutput hears the chunks of an exec as they are published, until stop is called. Messages are
// lost while the connection is away; offsets tell.
func (c *Conn) LiveOutput(tenant, sandbox, exec string, handle func(Chunk)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(protocol.LogSubject(tenant, sandbox, exec), func(m *nats.Msg) {
		k, err := chunkOf(m.Header, m.Data)
		if err != nil {
			c.log.Warn("a chunk of output cannot be read", "subject", m.Subject, "error", err)
			return
		}
		handle(k)
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
	}{{protocol.HeaderOffset, &k.Offset}, {protocol.HeaderNextOut, &k.NextStdout}, {protocol.HeaderNextErr, &k.NextStderr}} {
		v, err := strconv.ParseInt(h.Get(f.header), 10, 64)
		if err != nil || v < 0 {
			return k, protocol.Errorf(protocol.Internal, protocol.ReasonUndecodable, "a chunk of output without %s", f.header)
		}
		*f.value = v
	}
	if k.Stream != Stdout && k.Stream != Stderr {
		return k, protocol.Errorf(protocol.Internal, protocol.ReasonUndecodable, "a chunk of output of stream %.20q", k.Stream)
	}
	return k, nil
}
