package stream

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Transport sends the frames of one stream.
type Transport interface {
	// Send sends a frame, or loses it. It must not keep the frame after it returns. An error means that the frame is
	// lost; the stream sends it again when the transport is back. Send is never called concurrently.
	Send(frame []byte) error

	// Close is called once, when the stream sends no more frames and needs no more. It must not call the Conn.
	Close()
}

// Config configures one end of a stream. Zero values mean the defaults.
type Config struct {
	Frame      int // data bytes of the largest frame to send; default [protocol.StreamFrame]
	TakeFrame  int // data bytes of the largest frame to take; default [protocol.StreamFrame]
	Window     int // bytes granted to the other end at first; default [protocol.StreamWindow]
	MaxWindow  int // default Window; the window grows to this where bandwidth and round trip need it
	PeerWindow int // bytes that the other end accepts before it sends credit; default [protocol.StreamWindow]

	// Budget is shared by streams and limits their memory. Window then comes from [Budget.Window]. nil: no limit.
	Budget *Budget

	Ping   time.Duration // pause after which a silent other end is pinged; default 15 s
	Missed int           // unanswered pings after which the stream is lost; default 3
	Retry  time.Duration // pause after which an acknowledgement or more credit is asked for; default 250 ms
	Linger time.Duration // how long an ended stream still answers frames that were under way; default 1 s

	// Ask asks, outside the stream, whether the other end still has it. It is called again and again while the other end
	// answers no ping. It must neither block nor call the Conn. The answer goes to [Conn.Answered]. nil: nobody is asked.
	Ask func()

	// Silence is how long the other end may be silent while the answers say that the transport works; used with Ask.
	// Default: as long as Ping and Missed allow.
	Silence time.Duration

	// Greet sends a frame at once, and again until the other end answers. The end that opened the stream greets, so that
	// the other end knows that its answer arrived.
	Greet bool

	// FirstFrame is how long to wait for the other end's first frame. Default: no limit other than Ping and Missed.
	FirstFrame time.Duration
}

// Conn is one end of a stream. It is safe for concurrent use. Every error is, or wraps, a *protocol.Error, except
// [io.EOF].
type Conn struct {
	transport Transport
	ended     chan struct{}
	writing   sync.Mutex // held during a whole write, so that writes do not mix

	mu       sync.Mutex
	m        *machine
	readers  sync.Cond // wait for bytes or the end
	writers  sync.Cond // wait for room or the end
	sends    bool      // a goroutine is sending frames; it also sends the frames that other goroutines make due
	gone     bool      // the transport was closed
	timer    *time.Timer
	wakeAt   time.Time // when the timer fires; zero: it is stopped
	readEnd  deadline
	writeEnd deadline
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
)

// New returns one end of a stream. Its owner calls [Conn.Receive] and [Conn.Reconnected].
func New(t Transport, cfg Config) *Conn {
	c := &Conn{transport: t, ended: make(chan struct{}), m: newMachine(cfg, time.Now())}
	c.readers.L, c.writers.L = &c.mu, &c.mu
	c.mu.Lock()
	c.timer = time.AfterFunc(time.Hour, c.tick)
	c.flushLocked()
	c.mu.Unlock()
	return c
}

// Receive takes a frame of the other end. The stream keeps the frame. Receive never waits for the program that reads
// and writes; it may wait until the transport takes a frame.
func (c *Conn) Receive(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.receive(frame, time.Now())
	c.flushLocked()
}

// Reconnected says that the transport was cut off and is back, so that frames of both ends may be lost.
func (c *Conn) Reconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.reconnected(time.Now())
	c.flushLocked()
}

// Answered takes the answer to [Config.Ask].
func (c *Conn) Answered(a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.answered(a, time.Now())
	c.flushLocked()
}

// Abandon ends the stream without telling the other end, for a transport that is closed for good. A nil err means
// cancelled with reason stream_closed.
func (c *Conn) Abandon(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.fail(resetError(err), time.Now())
	c.flushLocked()
}

func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeAt = time.Time{}
	c.m.tick(time.Now())
	c.flushLocked()
}

// flushLocked sends the frames that are due, and wakes up the calls that may continue. It releases the lock while it
// sends. If another goroutine is sending, that goroutine sends these frames too.
func (c *Conn) flushLocked() {
	if c.m.owes.takeQuestion() {
		c.m.cfg.Ask()
	}
	c.wakeLocked()
	if c.sends || c.gone {
		return
	}
	c.sends = true
	for {
		frame := c.m.next(time.Now())
		if frame == nil {
			break
		}
		c.mu.Unlock()
		_ = c.transport.Send(frame) // a frame that is lost is sent again
		c.mu.Lock()
		c.m.using = nil
	}
	c.sends = false
	c.wakeLocked()
	now := time.Now()
	if c.m.isGone(now) {
		c.gone = true
		c.m.lent.giveBack(c.m.cfg.Budget)
		c.timer.Stop()
		c.transport.Close()
		return
	}
	if at := c.m.wake(); c.wakeAt.IsZero() || at.Before(c.wakeAt) {
		c.wakeAt = at
		c.timer.Reset(at.Sub(now))
	}
}

// wakeLocked wakes up the calls that may continue.
func (c *Conn) wakeLocked() {
	m := c.m
	if m.isOver() {
		select {
		case <-c.ended:
		default:
			close(c.ended)
			c.readers.Broadcast()
			c.writers.Broadcast()
		}
	}
	if len(m.unread) > 0 || m.eofReceived {
		c.readers.Broadcast()
	}
	if m.hasRoom() {
		c.writers.Broadcast()
	}
}

// Read reads bytes of the other end. It returns [io.EOF] after the last byte if the other end called CloseWrite or
// Close. Errors: the error with which either end reset the stream; unavailable with reason stream_lost if the other end
// is silent; cancelled with reason stream_closed after Close, which is also net.ErrClosed; deadline_exceeded, which is
// also os.ErrDeadlineExceeded.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.awaitBytesLocked(); err != nil {
		return 0, err
	}
	n := c.m.read(p, time.Now())
	if c.m.owes.window {
		c.flushLocked()
	}
	return n, nil
}

// WriteTo writes everything that the other end sends to w, without copying it. It returns nil when the other end has
// called CloseWrite or Close. Other errors are those of Read and of w.
func (c *Conn) WriteTo(w io.Writer) (written int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.awaitBytesLocked(); err == io.EOF {
			return written, nil
		} else if err != nil {
			return written, err
		}
		p := c.m.lend()
		c.mu.Unlock()
		n, err := w.Write(p)
		c.mu.Lock()
		written += int64(n)
		if c.m.used(len(p), time.Now()); c.m.owes.window {
			c.flushLocked()
		}
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return written, err
		}
	}
}

// awaitBytesLocked waits for bytes to read.
func (c *Conn) awaitBytesLocked() error {
	for {
		switch m := c.m; {
		case m.closed:
			return errClosed
		case m.drops:
			return errReadClosed
		case c.readEnd.hasPassed():
			return errDeadline
		case len(m.unread) > 0:
			return nil
		case m.eofReceived:
			return io.EOF
		case m.err != nil:
			return m.err
		}
		c.readers.Wait()
	}
}

// Write sends bytes. It returns when the stream has kept all of them, and blocks while the other end grants too little.
// Errors: those of Read; failed_precondition with reason stream_closed after CloseWrite.
func (c *Conn) Write(p []byte) (written int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.awaitRoomLocked(); err != nil {
			return written, err
		}
		written += c.m.write(p[written:min(len(p), written+c.m.cfg.Frame)])
		c.flushLocked()
		if written == len(p) {
			return written, nil
		}
	}
}

// Readable is a reader that can be waited for. While [Conn.ReadFrom] waits for one, it holds no memory for its bytes.
type Readable interface {
	io.Reader

	// AwaitReadable returns when Read would not block, or an error that Read does not report again.
	AwaitReadable() error
}

// firstRead is how many bytes ReadFrom reads at first, and again after a short read. After a full one, it reads frames.
const firstRead = 4 << 10

// ReadFrom sends everything that r has, without copying it. It does not call CloseWrite. Errors are those of Write and
// of r, except [io.EOF]. r may be a [Readable].
func (c *Conn) ReadFrom(r io.Reader) (read int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	waits, _ := r.(Readable)
	for size := firstRead; ; {
		if err := c.awaitRoomLocked(); err != nil {
			return read, err
		}
		if waits != nil {
			c.mu.Unlock()
			err := waits.AwaitReadable()
			c.mu.Lock()
			if ended := c.writeErrorLocked(); ended != nil {
				return read, ended
			}
			if err != nil {
				return read, err
			}
		}
		most := min(c.m.room(), c.m.cfg.Frame, size)
		frame := c.m.memory(most)[:dataHeader+most]
		c.mu.Unlock()
		n, err := r.Read(frame[dataHeader:])
		c.mu.Lock()
		if ended := c.writeErrorLocked(); ended != nil {
			return read, ended
		}
		if read += int64(n); n > 0 {
			c.m.adopt(frame[:dataHeader+n])
			c.flushLocked()
		}
		if err == io.EOF {
			return read, nil
		}
		if err != nil {
			return read, err
		}
		if size = firstRead; n == most {
			size = c.m.cfg.Frame
		}
	}
}

// awaitRoomLocked waits until the stream can keep more bytes.
func (c *Conn) awaitRoomLocked() error {
	for {
		if err := c.writeErrorLocked(); err != nil {
			return err
		}
		if c.writeEnd.hasPassed() {
			return errDeadline
		}
		if c.m.makeRoom() {
			return nil
		}
		c.writers.Wait()
	}
}

// writeErrorLocked returns why no more bytes may be written.
func (c *Conn) writeErrorLocked() error {
	switch m := c.m; {
	case m.closed:
		return errClosed
	case m.err != nil:
		return m.err
	case m.eofWritten:
		return errWriteClosed
	}
	return nil
}

// CloseWrite says that no more bytes follow. The other end reads [io.EOF] after the last byte. Reading continues.
// Errors: those of a write, if the stream has ended early.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.m.closed:
		return errClosed
	case c.m.err != nil:
		return c.m.err
	}
	c.m.eofWritten = true
	c.flushLocked()
	return nil
}

// CloseRead says that the program reads no more. Bytes that arrive are dropped, so the other end is not held up. Reads
// fail with failed_precondition and reason stream_closed. Writing continues. Error: that of a closed stream.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.closed {
		return errClosed
	}
	c.m.drops = true
	c.m.dropUnread()
	c.readers.Broadcast()
	c.flushLocked()
	return nil
}

// IsClosing reports whether the program has closed the stream, and the other end does not have everything yet.
func (c *Conn) IsClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.closed && !c.m.isOver()
}

// Close ends the stream. It does not wait: the written bytes are still delivered, in the background. If the other end
// still sends after that, its writes fail with cancelled and reason stream_closed. To end the stream at once, use
// Reset.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.close(time.Now())
	c.readEnd.stop()
	c.writeEnd.stop()
	c.readers.Broadcast()
	c.writers.Broadcast()
	c.flushLocked()
	return nil
}

// Reset ends the stream at once. Bytes that were not delivered are lost. Both ends' reads and writes fail with err. If
// err is not a *protocol.Error, its code is internal. A nil err means cancelled with reason stream_closed.
func (c *Conn) Reset(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.reset(resetError(err), time.Now())
	c.flushLocked()
}

func resetError(err error) *protocol.Error {
	if err == nil {
		return errReset
	}
	return protocol.AsError(err)
}

// Done returns a channel that is closed when the stream has ended: both ends have all bytes of the other end, or the
// stream was reset or lost.
func (c *Conn) Done() <-chan struct{} { return c.ended }

// Err returns the error with which the stream was reset or lost; nil for an open stream and after a proper end.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.err == nil {
		return nil
	}
	return c.m.err
}

// LocalAddr returns a placeholder: streams have no addresses.
func (c *Conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr returns the same placeholder as LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "boxfleet" }
func (addr) String() string  { return "stream" }

// SetDeadline sets the deadlines of reads and writes. The zero time means none.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t) // returns no error
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the deadline of present and future reads. It returns no error.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readEnd.set(t, &c.readers)
	return nil
}

// SetWriteDeadline sets the deadline of present and future writes. It returns no error.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeEnd.set(t, &c.writers)
	return nil
}
