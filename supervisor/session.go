package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The supervisor pauses before it dials the worker's socket again. The pause is an eighth of the time since the worker
// was last connected, but at least redialFirst and at most redialMost. A pause therefore adds little to the time
// without a connection.
const (
	redialFirst = 10 * time.Millisecond
	redialMost  = 200 * time.Millisecond
	redialPart  = 8
)

// serve keeps a connection to the worker until ctx ends.
func (s *supervisor) serve(ctx context.Context) {
	socket := filepath.Join(s.config.ControlDir, control.SocketName)
	away := time.Now()
	for ctx.Err() == nil {
		if conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"}); err == nil {
			if welcomed := s.session(ctx, conn); welcomed {
				away = time.Now()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(max(time.Since(away)/redialPart, redialFirst), redialMost)):
		}
	}
}

// session uses one connection until the connection ends. It reports whether the worker answered the Hello.
func (s *supervisor) session(ctx context.Context, conn *net.UnixConn) (welcomed bool) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	box := newOutbox()
	s.attach(box)
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		defer conn.Close()
		_ = box.write(conn) // after an error, listen fails too, because the connection is closed
	}()
	welcomed, err := s.listen(conn, box)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.config.Logger.Warn("the connection to the worker broke; dialling again", "error", err)
	}
	s.detach(box)
	box.close()
	conn.Close()
	<-writing
	return welcomed
}

// scratchMost is the largest read buffer that is kept between two frames.
const scratchMost = 64 << 10

func (s *supervisor) listen(conn *net.UnixConn, box *outbox) (welcomed bool, err error) {
	passed := newFileReader(conn)
	defer passed.close()
	r := bufio.NewReaderSize(passed, 32<<10)
	var scratch []byte
	for {
		var c control.Command
		if scratch, err = control.Read(r, control.MaxSecretsCommand, scratch, &c); err != nil {
			return welcomed, err
		}
		if c.Welcome != nil || c.Start != nil && len(c.Start.Secrets) > 0 {
			clear(scratch[:cap(scratch)]) // it had values of secrets
		}
		if cap(scratch) > scratchMost {
			scratch = nil
		}
		switch {
		case c.Welcome != nil:
			files, err := passed.take(c.Welcome.Files)
			if err != nil {
				return welcomed, err
			}
			if err := s.greet(&c, files, box); err != nil {
				return false, err
			}
			welcomed = true
		case !welcomed:
			return false, errors.New("the worker sent a command before the Welcome")
		case c.Help != nil:
			files, err := passed.take(c.Help.Files)
			if err != nil && err != errNoRoom {
				return welcomed, err
			}
			box.waitForRoom()
			s.handleHelp(&c, files, box)
		default:
			files, err := passed.takeFor(c.Start)
			if err != nil && err != errNoRoom {
				return welcomed, err
			}
			box.waitForRoom()
			if err != nil && s.exec(c.Start.ID) == nil { // an exec that was already started needs no files
				box.put(&control.Notice{Reply: &control.Reply{Seq: c.Seq, Error: errNoRoom}})
				continue
			}
			s.handle(&c, files, box)
		}
	}
}

// handle carries out one command. It does not wait: commands that take time are answered later. The second parameter
// has the files of a Start.
func (s *supervisor) handle(c *control.Command, files execFiles, box *outbox) {
	reply := func(r control.Reply) {
		r.Seq = c.Seq
		box.put(&control.Notice{Reply: &r})
	}
	switch {
	case (c.Start != nil || c.Signal != nil || c.StopAll != nil || c.Input != nil) && late(c.Until):
		files.close()
		reply(control.Reply{Error: protocol.Errorf(protocol.Unavailable, protocol.ReasonLeaseLost,
			"the command reached the supervisor after the end of the worker's lease")})
	case c.Start != nil:
		s.handleStart(c.Start, files, func(r control.Reply) {
			r.Seq = c.Seq
			box.putSoon(&control.Notice{Reply: &r})
		})
	case c.Cancel != nil:
		e := s.exec(c.Cancel.ID)
		if e == nil {
			reply(control.Reply{Error: unknownExec(c.Cancel.ID)})
			return
		}
		e.stop(cancelled, c.Cancel.Grace)
		reply(control.Reply{})
	case c.Input != nil:
		s.handleInput(c.Input, reply)
	case c.Signal != nil:
		e := s.exec(c.Signal.ID)
		if e == nil {
			reply(control.Reply{Error: unknownExec(c.Signal.ID)})
			return
		}
		go func() { reply(control.Reply{Signal: e.signal(c.Signal)}) }()
	case c.Processes != nil:
		go func() {
			table, err := s.processes()
			reply(control.Reply{Processes: table, Error: err})
		}()
	case c.Forget != nil:
		go func() {
			s.forget(c.Forget.IDs)
			reply(control.Reply{})
		}()
	case c.StopAll != nil:
		go func() {
			s.stopAll(c.StopAll.Grace, c.StopAll.Grace)
			reply(control.Reply{})
		}()
	default:
		reply(control.Reply{Error: protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupportedVersion,
			"the sandbox's supervisor has protocol version %d and does not know this command", control.Version)})
	}
}

func unknownExec(id string) *protocol.Error {
	return protocol.Errorf(protocol.NotFound, "", "the sandbox's supervisor does not know exec %.80q", id)
}

// late reports whether a command must not be carried out any more, because the worker that sent it may have lost the
// host's lock to another worker.
func late(until time.Duration) bool { return until != 0 && control.Clock() > until }

func (s *supervisor) handleStart(start *control.Start, files execFiles, reply func(control.Reply)) {
	e, created, refused := s.accept(start, files)
	if !created {
		files.close()
	}
	if refused != nil {
		reply(control.Reply{Error: refused})
		return
	}
	answer := func() {
		<-e.begun
		status, _ := e.status()
		reply(control.Reply{Status: &status})
	}
	if created {
		go e.run(start, answer)
	} else {
		go answer()
	}
}
