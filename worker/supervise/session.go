package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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

// secret reports whether the command has values of secrets.
func (q queued) secret() bool { return q.Start != nil && len(q.Start.Secrets) > 0 }

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

// handshake reads the Hello and answers with the Welcome. If the Welcome may start the primary command, the files for
// that command's output are sent with the Welcome. If this boot of the supervisor does not have the container's secrets
// yet, they are sent too.
func (s *session) handshake(ctx context.Context, w control.Welcome, files *outFiles,
	secrets Secrets) (control.Hello, error) {
	s.conn.SetDeadline(time.Now().Add(helloWithin))
	defer s.conn.SetDeadline(time.Time{})
	hello, err := s.readHello()
	if err != nil {
		return hello, err
	}
	if secrets != nil && !hello.Welcomed {
		err := errTooOld
		if hello.TakesSecrets {
			w.Secrets, err = secrets(ctx)
		}
		if err != nil {
			return hello, &refusal{err}
		}
		defer control.Wipe(w.Secrets)
		s.conn.SetDeadline(time.Now().Add(helloWithin))
	}
	if err := s.welcome(&hello, w, files); err != nil || len(w.Secrets) == 0 {
		return hello, err
	}
	var n control.Notice
	switch err := s.next(&n); {
	case err != nil:
		return hello, err
	case n.Reply == nil:
		return hello, errors.New("supervise: the supervisor did not answer the Welcome")
	case n.Reply.Error != nil:
		return hello, &refusal{n.Reply.Error}
	}
	return hello, nil
}

// refusal is the error of a supervisor that cannot start its commands, because it cannot get their secrets.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// errTooOld is the error of a command with secrets for a supervisor that an older worker started.
var errTooOld error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
	"the container's supervisor was started by an older worker and takes no secrets; create the sandbox again")

// readHello reads the Hello, which may have several frames.
func (s *session) readHello() (hello control.Hello, err error) {
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
			return hello, nil
		}
	}
}

// welcome sends the Welcome.
func (s *session) welcome(hello *control.Hello, w control.Welcome, files *outFiles) error {
	c := control.Command{Welcome: &w}
	if s.lease != nil {
		// If the lease has ended, Until is a time in the past, so the supervisor does not start the primary command.
		// The Welcome is sent nevertheless, because adopting running processes needs no lease.
		until, _ := s.lease()
		c.Until = control.Until(until)
	}
	var passed *passed
	if hello.TakesFiles && hello.Primary == nil && len(w.Command) > 0 {
		var err error
		if passed, err = files.command(); err != nil {
			return err
		}
		defer passed.release()
	}
	w.Files = passed.count()
	frame := control.Append(nil, &c)
	defer clear(frame) // it may have values of secrets
	if passed == nil {
		_, err := s.conn.Write(frame)
		return err
	}
	return s.writeWith(frame, passed.fds)
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
		if slices.ContainsFunc(commands, queued.secret) {
			clear(buf[:cap(buf)])
			buf = nil
		}
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
		changes := c.Start != nil || c.Help != nil || c.Signal != nil || c.StopAll != nil || c.Input != nil
		if s.lease != nil && changes {
			until, refused := s.lease()
			if refused != nil {
				s.answer(&control.Reply{Seq: c.Seq, Error: protocol.AsError(refused)})
				continue
			}
			c.Until = control.Until(until)
		}
		most := control.MaxCommand
		if commands[i].secret() {
			most = control.MaxSecretsCommand
		}
		framed := control.Append(buf, c)
		if size := len(framed) - len(buf); size > most {
			s.answer(
				&control.Reply{Seq: c.Seq, Error: protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge,
					"the command to the supervisor has %d bytes, at most %d are allowed", size, most)},
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
