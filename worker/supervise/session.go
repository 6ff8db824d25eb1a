package supervise

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// session is one accepted connection. Requests are pipelined: all requests that arrive during one write are sent
// together in the next write.
type session struct {
	conn    *net.UnixConn
	pid     int
	reader  *bufio.Reader
	scratch []byte
	writing sync.WaitGroup
	lease   func() (time.Duration, error) // nil: no limit on changes

	mu      sync.Mutex
	changed sync.Cond
	out     []queued // commands that are not yet encoded
	seq     uint64
	waiting map[uint64]chan *control.Reply // nil once the session has ended
}

// queued is a command in the queue of a session, with its files.
type queued struct {
	control.Command
	files *passed
}

func newSession(conn *net.UnixConn, pid int, lease func() (time.Duration, error)) *session {
	s := &session{
		conn:    conn,
		pid:     pid,
		lease:   lease,
		reader:  bufio.NewReaderSize(conn, 64<<10),
		waiting: map[uint64]chan *control.Reply{},
	}
	s.changed.L = &s.mu
	return s
}

// handshake reads the Hello, which may have several frames, and answers with the Welcome. If the Welcome may start the
// primary command, the files for that command's output are sent with the Welcome.
func (s *session) handshake(w control.Welcome, files *outFiles) (control.Hello, error) {
	s.conn.SetDeadline(time.Now().Add(helloWithin))
	defer s.conn.SetDeadline(time.Time{})
	var hello control.Hello
	for {
		var n control.Notice
		if err := s.next(&n); err != nil {
			return hello, err
		}
		if n.Hello == nil {
			return hello, fmt.Errorf("supervise: the first message is not a Hello")
		}
		n.Hello.Execs = append(hello.Execs, n.Hello.Execs...)
		hello = *n.Hello
		if len(hello.Execs) > control.MaxExecs {
			return hello, fmt.Errorf("supervise: the Hello has more than %d execs", control.MaxExecs)
		}
		if !hello.More {
			break
		}
	}
	c := control.Command{Welcome: &w}
	if s.lease != nil {
		// If the lease has ended, Until is a time in the past, so the supervisor does not start the primary command.
		// The Welcome is sent nevertheless, because adopting running processes needs no lease.
		until, _ := s.lease()
		c.Until = control.Until(until)
	}
	if !hello.TakesFiles || hello.Primary != nil || len(w.Command) == 0 {
		_, err := s.conn.Write(control.Append(nil, &c))
		return hello, err
	}
	passed, err := files.command()
	if err != nil {
		return hello, err
	}
	defer passed.release()
	w.Files = len(passed.fds)
	return hello, s.writeWith(control.Append(nil, &c), passed.fds)
}

// writeWith writes frames, and sends the files that belong to the last frame.
func (s *session) writeWith(frames []byte, files []int) error {
	n, _, err := s.conn.WriteMsgUnix(frames, unix.UnixRights(files...), nil)
	if err == nil && n < len(frames) {
		_, err = s.conn.Write(frames[n:])
	}
	return err
}

func (s *session) next(n *control.Notice) error {
	var err error
	s.scratch, err = control.Read(s.reader, control.MaxNotice, s.scratch, n)
	if cap(s.scratch) > 64<<10 {
		s.scratch = nil
	}
	return err
}

// read delivers replies to the calls that wait for them, and passes all other messages to notice, until the connection
// ends.
func (s *session) read(notice func(*control.Notice)) error {
	for {
		n := &control.Notice{}
		if err := s.next(n); err != nil {
			return err
		}
		if n.Reply == nil {
			notice(n)
			continue
		}
		s.answer(n.Reply)
	}
}

func (s *session) answer(r *control.Reply) {
	s.mu.Lock()
	answer := s.waiting[r.Seq]
	delete(s.waiting, r.Seq)
	s.mu.Unlock()
	if answer != nil {
		answer <- r
	}
}

// write sends the queued commands until the session ends. Encoding a command checks the lease, so write encodes no
// command while an earlier write is blocked: a stopped supervisor may block a write for a long time.
func (s *session) write() {
	var buf []byte
	var commands []queued
	for {
		s.mu.Lock()
		for len(s.out) == 0 && s.waiting != nil {
			s.changed.Wait()
		}
		if s.waiting == nil {
			s.mu.Unlock()
			return
		}
		commands, s.out = s.out, commands[:0]
		s.mu.Unlock()
		var err error
		buf, err = s.send(buf[:0], commands)
		for _, c := range commands {
			c.files.release()
		}
		clear(commands)
		if err != nil {
			s.conn.Close()
			return
		}
		if cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// send writes commands as frames. If a command must not be sent, send answers the command with an error. Frames without
// files are written together.
func (s *session) send(buf []byte, commands []queued) ([]byte, error) {
	for i := range commands {
		c := &commands[i].Command
		if s.lease != nil && (c.Start != nil || c.StopAll != nil) {
			until, refused := s.lease()
			if refused != nil {
				s.answer(&control.Reply{Seq: c.Seq, Error: protocol.AsError(refused)})
				continue
			}
			c.Until = control.Until(until)
		}
		framed := control.Append(buf, c)
		if size := len(framed) - len(buf); size > control.MaxCommand {
			s.answer(
				&control.Reply{Seq: c.Seq, Error: protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge,
					"the command to the supervisor has %d bytes, at most %d are allowed", size, control.MaxCommand)},
			)
			continue
		}
		buf = framed
		if files := commands[i].files; files != nil {
			if err := s.writeWith(buf, files.fds); err != nil {
				return buf, err
			}
			buf = buf[:0]
		}
	}
	if len(buf) == 0 {
		return buf, nil
	}
	_, err := s.conn.Write(buf)
	return buf, err
}

// end closes the connection, and ends the wait of every call.
func (s *session) end() {
	s.conn.Close()
	s.mu.Lock()
	for _, answer := range s.waiting {
		close(answer)
	}
	s.waiting = nil
	s.changed.Signal()
	s.mu.Unlock()
	s.writing.Wait()
	for _, c := range s.out {
		c.files.release()
	}
	s.out = nil
}

// ask sends a command with its files, and waits for the reply. The result lost is true if the connection ended before
// the reply came; then nobody knows whether the command was carried out.
func (s *session) ask(
	ctx context.Context,
	c control.Command,
	files *passed,
) (reply *control.Reply, lost bool, err error) {
	answer := make(chan *control.Reply, 1)
	s.mu.Lock()
	if s.waiting == nil {
		s.mu.Unlock()
		return nil, true, nil
	}
	s.seq++
	c.Seq = s.seq
	s.out = append(s.out, queued{c, files.hold()})
	s.waiting[c.Seq] = answer
	s.changed.Signal()
	s.mu.Unlock()
	select {
	case reply, ok := <-answer:
		return reply, !ok, nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waiting, c.Seq)
		s.mu.Unlock()
		return nil, false, unavailable(ctx)
	}
}

func unavailable(ctx context.Context) *protocol.Error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
		"the supervisor did not answer: %v", context.Cause(ctx))
}
