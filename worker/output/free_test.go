package output

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// publishing is an exec "x" of a sandbox "s" and a server that stores its output. The test writes the output file.
type publishing struct {
	t    *testing.T
	host *Host
	run  *os.Root
	file *os.File
	size int64
}

// here is the host of these tests.
var here = []protocol.OutputHost{{ID: "HOSTA"}}

// storedHere identifies the output of a log that the host of these tests published.
func storedHere(log string) jetstream.OutputOf {
	return jetstream.OutputOf{Tenant: "default", Sandbox: "s", Log: log, Hosts: here}
}

// newHost returns a host that is connected to a server of its own.
func newHost(t *testing.T) *Host {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	return New(Config{Conn: conn, HostID: here[0].ID, Burst: DefaultBurst, Rate: DefaultRate, Patience: time.Minute,
		After: time.Minute})
}

func newPublishing(t *testing.T) *publishing {
	t.Helper()
	host, dir := newHost(t), t.TempDir()
	exec := filepath.Join(dir, control.ExecsDir, "x")
	if err := os.MkdirAll(exec, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(exec, control.StdoutName))
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close(); run.Close() })
	return &publishing{t: t, host: host, run: run, file: file}
}

// newFreed returns an exec whose output was published and then freed, and its publisher.
func newFreed(t *testing.T) (*publishing, *Exec) {
	t.Helper()
	p := newPublishing(t)
	pub := p.publisher(false)
	p.print(5<<20 + 1234)
	p.publish(pub)
	p.awaitFreed(pub)
	return p, pub
}

// RunDir and the following methods make publishing a Sandbox that keeps running.
func (p *publishing) RunDir() (*os.Root, func(), error) { return p.run, func() {}, nil }
func (p *publishing) Ending() bool                      { return false }
func (p *publishing) Stopped() *protocol.Error          { return nil }
func (p *publishing) ReachLog(context.Context) error    { return nil }

// text returns the exec's output between two offsets. No two pages of the output are equal.
func text(from, to int64) []byte {
	data := make([]byte, 0, to-from)
	for i := from / 8; i < (to+7)/8; i++ {
		data = append(data, byte('a'+i%26), byte(i>>8), byte(i>>16), byte(i>>24), byte(i), '.', '.', '\n')
	}
	return data[from%8:][:to-from]
}

func (p *publishing) print(size int64) {
	p.t.Helper()
	if _, err := p.file.Write(text(p.size, p.size+size)); err != nil {
		p.t.Fatal(err)
	}
	p.size += size
}

func (p *publishing) publisher(adopted bool) *Exec {
	pub := p.host.NewExec(ExecConfig{
		Key: protocol.SandboxKey{Tenant: "default", ID: "s"}, Exec: &protocol.Exec{ID: "x"}, Adopted: adopted, Sandbox: p,
		Logger: slog.New(slog.DiscardHandler), HashFile: filepath.Join(p.run.Name(), "hashes", "x"),
	})
	pub.syncAfter = time.Millisecond
	return pub
}

func (p *publishing) publish(pub *Exec) {
	p.t.Helper()
	if err := pub.publish(p.t.Context(), p.size, 0); err != nil {
		p.t.Fatal(err)
	}
	if stdout, _ := pub.Published(); stdout != p.size {
		p.t.Fatalf("published %d bytes of %d", stdout, p.size)
	}
}

// onDisk returns how many bytes of disk space the output file uses.
func (p *publishing) onDisk() int64 {
	p.t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(p.file.Fd()), &stat); err != nil {
		p.t.Fatal(err)
	}
	if stat.Size != p.size {
		p.t.Errorf("the output file has the size %d, want %d", stat.Size, p.size)
	}
	return stat.Blocks * 512
}

// awaitFreed publishes until most of the output file is freed.
func (p *publishing) awaitFreed(pub *Exec) {
	p.t.Helper()
	eventually.Holds(p.t, 20*time.Second, "published output is freed on disk", func() bool {
		p.publish(pub)
		return p.onDisk() <= freeLeast
	})
}

// stored checks that the log has only output that the exec printed, and returns the offsets at which this output begins
// and ends.
func (p *publishing) stored() (from, to int64) {
	p.t.Helper()
	from = -1
	read := func(k jetstream.Chunk) error {
		if from < 0 {
			from, to = k.Offset, k.Offset
		}
		if end := k.Offset + int64(len(k.Data)); k.Offset > to || !bytes.Equal(k.Data, text(k.Offset, end)) {
			p.t.Fatalf("the log's bytes %d to %d, after byte %d, are not the output of the exec", k.Offset, end, to)
		} else {
			to = max(to, end)
		}
		return nil
	}
	if _, err := p.host.conn.ReadOutput(p.t.Context(), storedHere("x"), 0, read); err != nil {
		p.t.Fatal(err)
	}
	return from, to
}

// erase removes all output from the log.
func (p *publishing) erase() {
	p.t.Helper()
	room, err := p.host.conn.OutputRoom(p.t.Context())
	if err == nil {
		err = p.host.conn.PurgeOutput(p.t.Context(), "default", "s", room.First+1000)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func TestPublishedOutputIsFreedOnDisk(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	for range 3 {
		p.print(5<<20 + 1234)
		p.publish(pub)
		p.awaitFreed(pub)
	}
	if from, to := p.stored(); from != 0 || to != p.size {
		t.Errorf("the log has bytes %d to %d, want 0 to %d", from, to, p.size)
	}
	p.print(100) // this output follows the freed part, so it does not begin at the start of a page
	next := p.publisher(true)
	p.publish(next)
	if from, to := p.stored(); from != 0 || to != p.size {
		t.Errorf("after a restart the log has bytes %d to %d, want 0 to %d", from, to, p.size)
	}
}

// If the log has removed all output of an exec, the freed part of the output file must not be published again as zeros.
func TestFreedOutputIsNeverPublishedAgain(t *testing.T) {
	t.Parallel()
	p, pub := newFreed(t)
	for name, next := range map[string]*Exec{"the same worker": pub, "the next worker": p.publisher(true)} {
		p.erase()
		pub.reconnects = ^uint64(0) // makes the publisher read the published offsets from the log again
		p.print(3000)
		p.publish(next)
		if from, to := p.stored(); from < 4<<20 || to != p.size {
			t.Errorf("%s: the log has bytes %d to %d, want only bytes after the freed part, up to %d", name, from, to, p.size)
		}
	}
}

func TestOutputThatAServerMayLoseStaysOnDisk(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	pub.syncAfter = time.Hour
	p.print(4 << 20)
	p.publish(pub)
	p.publish(pub)
	if n := p.onDisk(); n < 4<<20 {
		t.Errorf("the output file uses only %d bytes on disk, want all of the output", n)
	}
}
