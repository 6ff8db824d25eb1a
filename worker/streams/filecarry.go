package streams

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/files"
	"github.com/boxfleet/boxfleet/zrecord"
)

// Operations with a stream have a helper each, because a slow client must not keep short operations waiting. A
// container takes 16 helpers. More transfers wait for their turn; more watches are refused, because watches may never
// end.
const (
	mostTransfers = 8 // transfers in one container at a time
	mostWatches   = 4

	// mostPortWatches limits how often the kernel's tables of a container's sockets are read.
	mostPortWatches = 16
)

// turns counts the transfers and watches of containers.
type turns struct {
	mu sync.Mutex
	of map[*attach.Attachment]*containerTurns
}

type containerTurns struct {
	users     int           // calls that use the entry
	transfers chan struct{} // one entry for each transfer
	watches   chan struct{} // one entry for each watch
	ports     chan struct{} // one entry for each watch of ports
}

func newTurns() *turns { return &turns{of: map[*attach.Attachment]*containerTurns{}} }

// transfer waits for the turn of a transfer.
func (t *turns) transfer(ctx context.Context, a *attach.Attachment) (done func(), err error) {
	c := t.use(a)
	select {
	case c.transfers <- struct{}{}:
		return func() { <-c.transfers; t.release(a, c) }, nil
	case <-ctx.Done():
		t.release(a, c)
		return nil, context.Cause(ctx)
	}
}

// watchWait is how long a watch waits for its turn: even after a client has ended its watch, the watch counts until its
// helper has ended.
const watchWait = 2 * time.Second

// watch takes one of the watches of a container. Error: resource_exhausted.
func (t *turns) watch(ctx context.Context, a *attach.Attachment) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, watchWait)
	defer cancel()
	c := t.use(a)
	select {
	case c.watches <- struct{}{}:
		return func() { <-c.watches; t.release(a, c) }, nil
	case <-ctx.Done():
		t.release(a, c)
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyStreams,
			"the container has %d watches, which is the most that are allowed: end one of them", mostWatches)
	}
}

// ports takes one of the watches of a container's ports. Error: resource_exhausted.
func (t *turns) ports(a *attach.Attachment) (done func(), err error) {
	c := t.use(a)
	select {
	case c.ports <- struct{}{}:
		return func() { <-c.ports; t.release(a, c) }, nil
	default:
		t.release(a, c)
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyStreams,
			"the container's ports have %d watches, which is the most that are allowed: end one of them", mostPortWatches)
	}
}

func (t *turns) use(a *attach.Attachment) *containerTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[a]
	if c == nil {
		c = &containerTurns{
			transfers: make(chan struct{}, mostTransfers), watches: make(chan struct{}, mostWatches),
			ports: make(chan struct{}, mostPortWatches)}
		t.of[a] = c
	}
	c.users++
	return c
}

func (t *turns) release(a *attach.Attachment, c *containerTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(t.of, a)
	}
}

// carry carries out an operation that sends or takes bytes. The helper of the operation ends with it.
func (f *fileCall) carry(ctx context.Context, conn *stream.Conn) error {
	a, err := f.Container(ctx, f.r.Service)
	if err != nil {
		return err
	}
	var done func()
	if f.r.Watch != nil {
		done, err = f.server.turns.watch(ctx, a)
	} else {
		done, err = f.server.turns.transfer(ctx, a)
	}
	if err != nil {
		return err
	}
	defer done()
	session, err := a.Link.Files(ctx, f.r.User, "")
	if err != nil {
		return err
	}
	defer session.Close()
	if f.r.Watch != nil {
		return f.watch(ctx, a, session, conn)
	}
	return f.change(f.r, func() error {
		return f.withRoom(ctx, a, func() error { return f.stream(ctx, session, conn) })
	})
}

// stream carries out the operation.
func (f *fileCall) stream(ctx context.Context, session *files.Session, conn *stream.Conn) error {
	answer := &protocol.FileAnswer{}
	var err error
	switch r := f.r; {
	case r.Pack != nil:
		answer.Count, err = f.pack(ctx, session, conn)
	case r.Unpack != nil && r.Compress != protocol.CompressNever:
		records := zrecord.NewReader(conn)
		defer records.Close()
		answer.Count, err = session.Unpack(ctx, *r.Unpack, uploaded{records, conn, f.Call})
	case r.Unpack != nil:
		answer.Count, err = session.Unpack(ctx, *r.Unpack, uploaded{conn, conn, f.Call})
	default:
		answer.File, err = session.Write(ctx, *r.Write, uploaded{conn, conn, f.Call})
	}
	if err != nil {
		return err
	}
	return sendAnswer(conn, answer)
}

// pack sends a tar stream as records.
func (f *fileCall) pack(ctx context.Context, session *files.Session, conn *stream.Conn) (*protocol.FileCount, error) {
	if f.r.Compress == protocol.CompressNever {
		return session.Pack(ctx, *f.r.Pack, recordWriter{conn})
	}
	records := zrecord.NewWriter(conn, f.r.Compress)
	count, err := session.Pack(ctx, *f.r.Pack, records)
	if err == nil {
		err = records.Flush()
	}
	return count, err
}

const (
	roomPause = 20 * time.Millisecond // between two tries to start a helper
	roomTries = 250                   // 5 s
)

// withRoom carries out an operation. While the container has no room for its helper, withRoom ends idle helpers and
// tries again: a helper that was told to end takes room until it has ended.
func (f *fileCall) withRoom(ctx context.Context, a *attach.Attachment, operation func() error) error {
	for try := 1; ; try++ {
		err := operation()
		if e := (*protocol.Error)(nil); try == roomTries || !errors.As(err, &e) ||
			e.Code != protocol.ResourceExhausted || e.Reason != protocol.ReasonStartFailed {
			return err
		}
		f.server.sessions.makeRoom(a)
		if !backoff.Sleep(ctx, roomPause) {
			return err
		}
	}
}

// watch sends events until the client ends the stream. If the client reads slowly, the kernel drops events, and a later
// event says so.
func (f *fileCall) watch(ctx context.Context, a *attach.Attachment, session *files.Session, conn *stream.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() { // the client sends nothing: its end of the stream ends the watch
		defer close(ended)
		var none [1]byte
		_, _ = conn.Read(none[:]) // any end of the stream ends the watch
		cancel()
	}()
	err := f.withRoom(ctx, a, func() error {
		return session.Watch(ctx, *f.r.Watch, func(events []protocol.FileEvent) error {
			return sendAnswer(conn, &protocol.FileAnswer{Events: &protocol.FileEvents{Events: events}})
		})
	})
	conn.Reset(err) // ends the Read
	<-ended
	return err
}

// uploaded reads and counts what a client sends.
type uploaded struct {
	from io.Reader // the content, which comes from the stream
	conn *stream.Conn
	call *Call
}

func (u uploaded) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	u.call.Sent(n)
	return n, err
}

// SetReadDeadline ends a Read that waits for the client.
func (u uploaded) SetReadDeadline(at time.Time) error { return u.conn.SetReadDeadline(at) }

// recordWriter sends the bytes that are written to it as records of data.
type recordWriter struct{ conn *stream.Conn }

func (w recordWriter) Write(p []byte) (int, error) {
	if err := sendRecord(w.conn, protocol.FileRecordData, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
