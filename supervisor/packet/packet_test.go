package packet_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed())) }

// pair returns both ends of a connection.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	open := func(fd int) *net.UnixConn {
		file := os.NewFile(uintptr(fd), "socket")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.UnixConn)
	}
	return open(fds[0]), open(fds[1])
}

func TestAMessageLongerThanAPacketArrivesWhole(t *testing.T) {
	a, b := pair(t)
	want := &control.FileCall{Edit: &protocol.FileEdit{Path: "/x",
		Old: bytes.Repeat([]byte("o"), protocol.MaxFileEditText)}}
	go func() { _ = packet.New(a).SendMessage(want, -1) }() // the receiver notices a failure
	in, parts := packet.New(b), packet.Collector{Limit: control.MaxCall}
	for {
		kind, body, file, err := in.Receive()
		if err != nil || file >= 0 {
			t.Fatalf("received descriptor %d, error %v", file, err)
		}
		got := &control.FileCall{}
		if complete, err := parts.Add(kind, body, got); err != nil {
			t.Fatal(err)
		} else if complete {
			if !bytes.Equal(got.Edit.Old, want.Edit.Old) {
				t.Error("the message changed")
			}
			return
		}
	}
}

func TestAPeerThatSendsTooMuchIsRefused(t *testing.T) {
	for name, send := range map[string]func(*net.UnixConn) error{
		"a large packet": func(c *net.UnixConn) error { _, err := c.Write(make([]byte, 2+packet.MaxBody)); return err },
		"two descriptors": func(c *net.UnixConn) error {
			_, _, err := c.WriteMsgUnix([]byte("mx"), unix.UnixRights(0, 1), nil)
			return err
		},
		"three descriptors": func(c *net.UnixConn) error {
			_, _, err := c.WriteMsgUnix([]byte("mx"), unix.UnixRights(0, 1, 2), nil)
			return err
		},
	} {
		a, b := pair(t)
		if err := send(a); err != nil {
			t.Fatal(err)
		}
		if _, _, file, err := packet.New(b).Receive(); err == nil || file >= 0 {
			t.Errorf("%s: got descriptor %d and error %v, want a refusal", name, file, err)
		}
	}
	parts := packet.Collector{Limit: 10}
	if _, err := parts.Add(packet.Part, make([]byte, 8), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := parts.Add(packet.Part, make([]byte, 8), nil); err == nil || !strings.Contains(err.Error(), "10 bytes") {
		t.Errorf("parts that are too long together: got %v, want a refusal", err)
	}
}

func TestTheEndOfTheConnectionIsTheEndOfTheFile(t *testing.T) {
	a, b := pair(t)
	a.Close()
	if _, _, _, err := packet.New(b).Receive(); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

func FuzzCollector(f *testing.F) {
	f.Add(protocol.Encode(&control.FileReply{File: &protocol.FileInfo{Path: "x"}}), byte('m'))
	f.Fuzz(func(t *testing.T, body []byte, kind byte) {
		parts := packet.Collector{Limit: 1 << 10}
		// Random data may be an error, but must not panic.
		_, _ = parts.Add(packet.Part, body[:len(body)/2], &control.FileReply{})
		_, _ = parts.Add(kind, body[len(body)/2:], &control.FileReply{})
		_, _ = parts.Add(kind, body, &control.FileCall{})
	})
}

// A message of 1 MiB may have a million elements, which would take 300 MiB in memory.
func TestAMessageWithTooManyElementsIsRefused(t *testing.T) {
	elements := func(n int) []byte { // {"page": {"files": [{}, {}, …]}}
		m := append([]byte{0x81, 0xa4}, "page"...)
		m = append(append(m, 0x81, 0xa5), "files"...)
		m = binary.BigEndian.AppendUint32(append(m, 0xdd), uint32(n))
		return append(m, bytes.Repeat([]byte{0x80}, n)...)
	}
	for n, taken := range map[int]bool{protocol.MaxFileMatches: true, protocol.MaxFileMatches + 1: false} {
		var reply control.FileReply
		c := packet.Collector{Limit: control.MaxReply}
		_, err := c.Add(packet.Message, elements(n), &reply)
		if taken && (err != nil || len(reply.Page.Files) != n) {
			t.Errorf("%d elements: %v", n, err)
		}
		if !taken && protocol.AsError(err).Reason != protocol.ReasonTooLarge {
			t.Errorf("%d elements: got %v, want too_large", n, err)
		}
	}
}
