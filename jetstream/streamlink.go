package jetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// streamLink is a connection on which streams send and receive their frames.
type streamLink struct {
	conn *core

	mu   sync.Mutex
	ends map[string]*streamEnd // open streams, by the subject of what they receive; nil after the connection was closed
}

// newStreamLink returns the link of a connection. The link tells its streams when the connection is back, and when it
// is closed.
func newStreamLink(conn *core) *streamLink {
	l := &streamLink{conn: conn, ends: map[string]*streamEnd{}}
	conn.OnReconnect(func() { go l.reconnected() })
	go func() {
		<-conn.Closed()
		l.abandon()
	}()
	return l
}

func (l *streamLink) reconnected() {
	for _, e := range l.all() {
		if c := e.opened(); c != nil {
			c.Reconnected()
		}
	}
}

// abandon ends all streams: the connection was closed for good.
func (l *streamLink) abandon() {
	all := l.all()
	l.mu.Lock()
	l.ends = nil
	l.mu.Unlock()
	for _, e := range all {
		if c := e.opened(); c != nil {
			c.Abandon(errLinkClosed)
		}
	}
}

var errLinkClosed = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
	"the connection to NATS was closed")

// closeWait is how long the close of a connection waits for the bytes of streams that the program has closed before.
const closeWait = 2 * time.Second

// resetAll tells the other ends that the connection is about to be closed. Streams that the program has closed may
// first deliver the written bytes, until ctx ends.
func (l *streamLink) resetAll(ctx context.Context) {
	for _, e := range l.all() {
		if c := e.opened(); c != nil && c.IsClosing() && l.conn.Connected() {
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
		}
	}
	for _, e := range l.all() {
		if c := e.opened(); c != nil {
			c.Reset(nil)
		}
	}
}

func (l *streamLink) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends == nil
}

// all returns the open streams.
func (l *streamLink) all() (all []*streamEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.ends {
		all = append(all, e)
	}
	return all
}

// frameMargin is how many bytes of the server's max_payload a data frame does not use for data: its header, and room to
// spare.
const frameMargin = 64

// frameMost returns the data bytes of the largest frame that the server takes.
func (l *streamLink) frameMost(bulk bool) int {
	most := protocol.StreamFrame
	if bulk {
		most = protocol.StreamBulkFrame
	}
	return min(most, int(l.conn.nc.MaxPayload())-frameMargin)
}

// streamEnd is one end of a stream: it sends frames to one subject and receives those of another one.
type streamEnd struct {
	link     *streamLink
	from, to string
	sub      *nats.Subscription

	mu    sync.Mutex
	conn  *stream.Conn
	early [][]byte // frames that arrived before the answer to the request
	size  int      // their bytes

	question question
}

// Limits of the frames that wait in one subscription. A stream takes its frames without waiting for the program that
// reads them, so only a flood reaches the limits.
const (
	frameQueue     = 4096
	frameQueueSize = 2 * protocol.MaxStreamWindow
)

// listen subscribes to the frames of the other end. Errors: already_exists if a stream with this id is open;
// unavailable.
func (l *streamLink) listen(from, to string) (*streamEnd, error) {
	e := &streamEnd{link: l, from: from, to: to}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends == nil {
		return nil, errLinkClosed
	}
	if l.ends[from] != nil {
		return nil, protocol.Errorf(protocol.AlreadyExists, "", "a stream with this id is open: choose another id at random")
	}
	sub, err := l.conn.nc.Subscribe(from, e.receive)
	if err == nil {
		err = sub.SetPendingLimits(frameQueue, frameQueueSize)
	}
	if err != nil {
		return nil, translate(err, "receive the frames of a stream")
	}
	e.sub = sub
	l.ends[from] = e
	return e, nil
}

// receive takes a frame. No frame has headers: a message with headers is an answer or a republished message, whose
// subject proves nothing about its sender.
func (e *streamEnd) receive(m *nats.Msg) {
	if len(m.Header) > 0 {
		return
	}
	e.mu.Lock()
	c := e.conn
	if c == nil && e.size+len(m.Data) <= frameQueueSize {
		e.early, e.size = append(e.early, m.Data), e.size+len(m.Data)
	}
	e.mu.Unlock()
	if c != nil {
		c.Receive(m.Data)
	}
}

// open begins the stream.
func (e *streamEnd) open(cfg stream.Config) *stream.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := stream.New(e, cfg)
	for _, frame := range e.early {
		c.Receive(frame)
	}
	e.conn, e.early = c, nil
	if e.link.isClosed() {
		c.Abandon(errLinkClosed)
	}
	return c
}

func (e *streamEnd) opened() *stream.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conn
}

// Send publishes a frame. While the connection is lost, the frame is lost too.
func (e *streamEnd) Send(frame []byte) error {
	err := e.link.conn.nc.Publish(e.to, frame)
	if errors.Is(err, nats.ErrMaxPayload) {
		go e.opened().Reset(protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
			"the NATS server now takes only %d bytes in one message, less than when the stream was opened: "+
				"open the stream again",
			e.link.conn.nc.MaxPayload()))
	}
	return translate(err, "send a frame")
}

// Close ends the subscription.
func (e *streamEnd) Close() {
	_ = e.sub.Unsubscribe() // fails only if the connection is closed
	e.question.end()
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	delete(e.link.ends, e.from)
}

// bulkLink is a connection for bulk streams, which is opened when the first one needs it. Keystrokes then do not wait
// behind the data of files.
type bulkLink struct {
	mu      sync.Mutex
	link    *streamLink
	opening chan struct{} // closed when the attempt to connect has ended; nil: nobody connects
}

// current returns the connection, or nil if none was opened. It does not wait.
func (b *bulkLink) current() *streamLink {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.link
}

// open returns the connection. One caller at a time connects, and the others wait for it, each as long as its ctx
// allows. The connection is closed when owner is closed.
func (b *bulkLink) open(ctx context.Context, owner *core) (*streamLink, error) {
	for {
		b.mu.Lock()
		if b.link != nil && !b.link.conn.nc.IsClosed() {
			defer b.mu.Unlock()
			return b.link, nil
		}
		connecting := b.opening
		if connecting == nil {
			b.opening = make(chan struct{})
			b.mu.Unlock()
			return b.connect(ctx, owner)
		}
		b.mu.Unlock()
		select {
		case <-connecting:
		case <-ctx.Done():
			return nil, translate(ctx.Err(), "open a connection for bulk streams")
		}
	}
}

func (b *bulkLink) connect(ctx context.Context, owner *core) (link *streamLink, err error) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if link != nil {
			b.link = link
		}
		close(b.opening)
		b.opening = nil
	}()
	made, err := owner.another(ctx, "bulk")
	if err != nil {
		return nil, err
	}
	go func() {
		select {
		case <-owner.Closed():
			made.Close()
		case <-made.Closed():
		}
	}()
	return newStreamLink(&made.core), nil
}
