package files

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// A helper may send without end. A caller that asked for a part of a file gets no more than that.
func TestMoreBytesThanAskedForAreRefused(t *testing.T) {
	feeding := func(c *packet.Conn) {
		_ = c.SendMessage(&control.FileReply{File: &protocol.FileInfo{}, Stream: true}, -1) // without it, the read fails
		data := packet.NewData()
		for c.SendData(data, 1<<10) == nil { // until the worker has had enough
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := facing(t, feeding).Read(ctx, protocol.FileRead{Path: "/x", Length: 5000})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
	if protocol.CodeOf(err) != protocol.Unavailable || n > 5000 {
		t.Errorf("got %d bytes, %v; want at most 5000, and unavailable", n, err)
	}
}

// A message that an idle helper sends must not become the answer of the next operation.
func TestAnIdleHelperThatSpokeUnaskedIsReplaced(t *testing.T) {
	answer := &control.FileReply{Stats: &protocol.FileStats{Files: []protocol.FileResult{{File: &protocol.FileInfo{}}}}}
	forged := &control.FileReply{Stats: &protocol.FileStats{Files: []protocol.FileResult{
		{File: &protocol.FileInfo{Path: "/forged"}}}}}
	spoke := make(chan struct{}, 2)
	s := New(Config{Start: func(context.Context) (*net.UnixConn, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		theirs := packet.New(connOf(t, pair[1]))
		go func() {
			defer theirs.Close()
			if _, _, _, err := theirs.Receive(); err != nil {
				return
			}
			if err := errors.Join(theirs.SendMessage(answer, -1), theirs.SendMessage(forged, -1)); err != nil {
				t.Error(err)
			}
			spoke <- struct{}{}
			_, _, _, _ = theirs.Receive() // until the session ends
		}()
		return connOf(t, pair[0]), nil
	}})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		got, err := s.Stat(ctx, protocol.FileStat{Paths: []string{"/x"}})
		if err != nil || got.Files[0].File.Path != "" {
			t.Errorf("got %+v, %v", got, err)
		}
		eventually.Holds(t, 10*time.Second, "the helper has spoken", func() bool { return len(spoke) > 0 })
		<-spoke
	}
}

func connOf(t *testing.T, fd int) *net.UnixConn {
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Error(err)
		return nil
	}
	return conn.(*net.UnixConn)
}

// A connection that a helper passes must be one whose reads, writes and close the worker knows how to bound.
func TestOnlyConnectedStreamsAreConnections(t *testing.T) {
	socket := func(domain, kind int) func() (int, error) {
		return func() (int, error) { return unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0) }
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, open := range map[string]func() (int, error){
		"a socket for datagrams": socket(unix.AF_INET, unix.SOCK_DGRAM),
		"a socket for packets":   socket(unix.AF_UNIX, unix.SOCK_SEQPACKET),
		"a socket that listens": func() (int, error) {
			fd, err := socket(unix.AF_INET, unix.SOCK_STREAM)()
			if err == nil {
				err = unix.Listen(fd, 1) // at a free port
			}
			return fd, err
		},
		"a socket of another family": socket(unix.AF_VSOCK, unix.SOCK_STREAM),
	} {
		fd, err := open()
		if err != nil {
			t.Logf("this kernel has no %s: %v", name, err)
			continue
		}
		unix.Close(fd)
		_, err = facing(t, passing(open)).Dial(ctx, "tcp", "localhost:1")
		if protocol.CodeOf(err) != protocol.Unavailable {
			t.Errorf("%s: got %v, want unavailable", name, err)
		}
	}
}

// An operation that needs no descriptor refuses the reply that has one, even if the rest of it fits.
func TestADescriptorThatNobodyAskedForIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	open := func() (int, error) { return unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0) }
	_, err := facing(t, passing(open)).Mkdir(ctx, protocol.FileMkdir{Path: "/x"})
	if protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
}
