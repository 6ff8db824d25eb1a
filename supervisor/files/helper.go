package files

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

const (
	// memoryTarget makes the runtime collect garbage more often above this many bytes.
	memoryTarget = 32 << 20
	// exitWithin is how long an operation may take to stop after the worker closed the connection. A system call on a
	// broken file system may never return.
	exitWithin = 2 * time.Second
	umask      = 0o022
	// gcPercent keeps the heap small: each helper counts against the sandbox's memory.
	gcPercent = 25
)

// helper serves one worker.
type helper struct {
	link *packet.Conn
	cwd  string // where relative paths begin

	buf    []byte // buffer for copies; one call at a time uses it
	owners giver

	// closed is called when the worker has closed the connection during a call.
	closed func()
}

// Run serves the worker on descriptor [control.HelperSocket] until the worker closes the connection. Relative paths
// begin at cwd.
func Run(cwd string) error {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryTarget)
	unix.Umask(umask)
	unix.CloseOnExec(control.HelperSocket)
	file := os.NewFile(control.HelperSocket, "connection to the worker")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("use the connection to the worker: %w", err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return errors.New("the connection to the worker is not a unix socket")
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	exitSoon := func() { time.AfterFunc(exitWithin, func() { os.Exit(1) }) }
	go func() {
		<-terminated
		exitSoon()
		socket.Close()
	}()
	return serve(socket, cwd, exitSoon)
}

// serve carries out one call after another until the connection ends.
func serve(socket *net.UnixConn, cwd string, closed func()) error {
	defer socket.Close()
	h := &helper{link: packet.New(socket), cwd: cwd, closed: closed, buf: make([]byte, copyBuffer)}
	for {
		call, err := h.receive()
		if err != nil {
			return err
		}
		if err := h.run(call); err != nil {
			return err
		}
	}
}

// receive returns the next call.
func (h *helper) receive() (*control.FileCall, error) {
	parts := packet.Collector{Limit: control.MaxCall}
	for {
		kind, body, file, err := h.link.Receive()
		if err != nil {
			return nil, err
		}
		packet.Discard(file)
		if kind != packet.Message && kind != packet.Part {
			return nil, fmt.Errorf("a packet of kind %q came between two calls", kind)
		}
		call := &control.FileCall{}
		if complete, err := parts.Add(kind, body, call); err != nil || complete {
			return call, err
		}
	}
}

// run carries out one call. The error is that of the connection.
func (h *helper) run(c *control.FileCall) error {
	h.owners = giver{link: h.link, gives: c.Gives}
	switch {
	case c.Write != nil:
		return h.upload(func(in *input) (*control.FileReply, error) { return h.write(in, c.Write) })
	case c.Unpack != nil:
		return h.upload(func(in *input) (*control.FileReply, error) { return h.unpack(in, c.Unpack) })
	case c.Mkdir != nil: // it waits for the worker's packets, and soon ends
		return h.answer(h.mkdir(c.Mkdir))
	}
	ctx, stop := h.whileConnected()
	defer stop()
	switch {
	case c.Read != nil:
		return h.read(ctx, c.Read)
	case c.Dial != nil:
		return h.dial(ctx, c.Dial)
	case c.Watch != nil:
		return h.answer(nil, h.watch(ctx, c.Watch))
	case c.Pack != nil:
		return h.answer(h.pack(ctx, c.Pack))
	}
	return h.answer(h.simple(ctx, c))
}

// simple carries out a call whose result is in the reply alone.
func (h *helper) simple(ctx context.Context, c *control.FileCall) (*control.FileReply, error) {
	switch {
	case c.Stat != nil:
		return h.stat(ctx, c.Stat)
	case c.List != nil:
		return h.list(ctx, c.List)
	case c.Move != nil:
		return h.move(ctx, c.Move)
	case c.Copy != nil:
		return h.copy(ctx, c.Copy)
	case c.Remove != nil:
		return h.remove(ctx, c.Remove)
	case c.Glob != nil:
		return h.glob(ctx, c.Glob)
	case c.Grep != nil:
		return h.grep(ctx, c.Grep)
	case c.Edit != nil:
		return h.edit(c.Edit)
	case c.Changes != nil:
		return h.changes(ctx, c.Changes)
	}
	return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupportedVersion,
		"the sandbox's supervisor does not know this operation on files; create the sandbox again")
}

// answer sends the reply of a call.
func (h *helper) answer(reply *control.FileReply, err error) error {
	if err != nil {
		reply = &control.FileReply{Error: protocol.AsError(err)}
	}
	return h.link.SendMessage(reply, -1)
}

// whileConnected returns a context that ends when the worker closes the connection, which cancels the call. The worker
// sends nothing during the calls that use the context.
func (h *helper) whileConnected() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	conn := h.link.Socket()
	raw, err := conn.SyscallConn()
	if err != nil {
		cancel()
		return ctx, cancel
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		open := false
		err := raw.Read(func(fd uintptr) bool {
			n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			open = n > 0 // the next call: the worker has the reply already
			return open || err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
		})
		if !open && !errors.Is(err, os.ErrDeadlineExceeded) {
			cancel()
			h.closed()
		}
	}()
	return ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // wakes the goroutine; fails if the connection is closed
		<-watched
		_ = conn.SetReadDeadline(time.Time{}) // fails if the connection is closed
		cancel()
	}
}

// upload carries out a call that takes a stream. If the call fails early, the reply goes out at once, and the rest of
// the stream is dropped.
func (h *helper) upload(call func(*input) (*control.FileReply, error)) error {
	in := &input{link: h.link}
	reply, err := call(in)
	if in.broken != nil {
		return in.broken
	}
	if err := h.answer(reply, err); err != nil {
		return err
	}
	return in.drain()
}
