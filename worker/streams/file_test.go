package streams

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/files"
)

// inContainer is a sandbox with one container.
type inContainer struct {
	history
	container *attach.Attachment
}

func (s *inContainer) Reach(context.Context, string) (*attach.Attachment, error) {
	return s.container, nil
}

// facing returns a call in a container whose helper is a function of the test.
func facing(t *testing.T, helper func(c *packet.Conn)) *Call {
	t.Helper()
	open := func(fd int) *net.UnixConn {
		file := os.NewFile(uintptr(fd), "socket")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Error(err)
			return nil
		}
		return conn.(*net.UnixConn)
	}
	made := files.New(files.Config{Start: func(context.Context) (*net.UnixConn, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		theirs := packet.New(open(pair[1]))
		go func() {
			defer theirs.Close()
			helper(theirs)
		}()
		return open(pair[0]), nil
	}})
	t.Cleanup(made.Close)
	s := &Server{tenure: t.Context(), sessions: newSessions(), turns: newTurns(), uses: newUses(slog.Default())}
	container := &attach.Attachment{}
	s.sessions.byKey[sessionKey{container: container}] = &session{Session: made}
	return &Call{server: s, sandbox: &inContainer{container: container}}
}

// The first bytes of a file travel with the answer. A container that never sends them must not keep the request, and
// with it a worker that stops.
func TestAReadThatIsNotFedEndsWithItsRequest(t *testing.T) {
	c := facing(t, func(h *packet.Conn) {
		if _, _, _, err := h.Receive(); err == nil {
			// The worker notices a failure.
			_ = h.SendMessage(&control.FileReply{File: &protocol.FileInfo{}, Stream: true}, -1)
		}
		_, _, _, _ = h.Receive() // until the worker ends the reading
	})
	c.Open = &protocol.StreamOpen{Request: protocol.Encode(&protocol.FileRequest{
		Read: &protocol.FileRead{Path: "/x"}, Inline: protocol.MaxFileInline})}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := file(ctx, c)
		c.end()
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the read succeeded")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the request does not end")
	}
}

// A request of 4 MiB may have four million paths, which would take 200 MiB in memory.
func TestARequestWithTooManyElementsIsRefused(t *testing.T) {
	paths := make([]string, protocol.MaxFileMatches+1)
	_, err := decodeFile(protocol.Encode(&protocol.FileRequest{Stat: &protocol.FileStat{Paths: paths}}))
	if e := protocol.AsError(err); err == nil || e.Reason != protocol.ReasonTooLarge {
		t.Errorf("got %v, want too_large", err)
	}
}
