package worker

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// publishing is an exec x of a sandbox s whose output is a file of the test's, and a server that keeps it.
type publishing struct {
	t    *testing.T
	conn *jetstream.Conn
	run  *execRun
	a    *attachment
	file *os.File
	size int64
}

func newPublishing(t *testing.T) *publishing {
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
	dir := t.TempDir()
	exec := filepath.Join(dir, control.ExecsDir, "x")
	if err := os.MkdirAll(exec, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(exec, control.StdoutName))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close(); root.Close() })
	w := newWorker(Config{Conn: conn, Logger: slog.New(slog.DiscardHandler), Probe: func(string) {},
		OutputBurst: DefaultOutputBurst, OutputRate: DefaultOutputRate, OutputPatience: time.Minute})
	s := &sandbox{w: w, key: key{Tenant: "default", ID: "s"}, log: w.log}
	return &publishing{t: t, conn: conn, run: &execRun{s: s, id: "x"}, a: &attachment{s: s, run: root, over: make(chan struct{})}, file: file}
}

// text is what the exec prints; no two pages of it are the same.
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

func (p *publishing) publisher(adopted bool) *publisher {
	pub := newPublisher(p.run, p.a, &protocol.Exec{}, adopted)
	pub.settles = time.Millisecond
	return pub
}

func (p *publishing) publish(pub *publisher) {
	p.t.Helper()
	if err := pub.publish(p.t.Context(), p.size, 0); err != nil {
		p.t.Fatal(err)
	}
	if pub.out.published != p.size {
		p.t.Fatalf("%d bytes are published of %d", pub.out.published, p.size)
	}
}

// onDisk is how much room the file takes.
func (p *publishing) onDisk() int64 {
	p.t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(p.file.Fd()), &stat); err != nil {
		p.t.Fatal(err)
	}
	if stat.Size != p.size {
		p.t.Errorf("the file has %d bytes, want %d", stat.Size, p.size)
	}
	return stat.Blocks * 512
}

// freed waits until the file takes little.
func (p *publishing) freed(pub *publisher) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); p.onDisk() > freeLeast; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("the file takes %d bytes of the disk, and %d are published", p.onDisk(), pub.out.published)
		}
		p.publish(pub)
	}
}

// kept reads what the log has, which must be what the exec printed, and says where it begins and ends.
func (p *publishing) kept() (from, to int64) {
	p.t.Helper()
	from = -1
	if _, err := p.conn.ReadOutput(p.t.Context(), "default", "s", "x", 0, func(k jetstream.Chunk) error {
		if from < 0 {
			from, to = k.Offset, k.Offset
		}
		if end := k.Offset + int64(len(k.Data)); k.Offset > to || !bytes.Equal(k.Data, text(k.Offset, end)) {
			p.t.Fatalf("bytes %d to %d are not what was printed after %d", k.Offset, end, to)
		} else {
			to = max(to, end)
		}
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
	return from, to
}

func (p *publishing) erase() {
	p.t.Helper()
	room, err := p.conn.OutputRoom(p.t.Context())
	if err == nil {
		err = p.conn.PurgeOutput(p.t.Context(), "default", "s", room.First+1000)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func TestOutputThatTheLogHasIsFreedOnTheDisk(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	for range 3 {
		p.print(5<<20 + 1234)
		p.publish(pub)
		p.freed(pub)
	}
	if from, to := p.kept(); from != 0 || to != p.size {
		t.Errorf("the log has bytes %d to %d, want 0 to %d", from, to, p.size)
	}
	p.print(100) // behind what was freed, and so not at the beginning of a page
	next := p.publisher(true)
	p.publish(next)
	if from, to := p.kept(); from != 0 || to != p.size {
		t.Errorf("after a restart the log has bytes %d to %d, want 0 to %d", from, to, p.size)
	}
}

// Where the log has given up all of an exec's output, what was freed is not published again as zeros.
func TestWhatWasFreedIsNeverPublishedAgain(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	p.print(5<<20 + 1234)
	p.publish(pub)
	p.freed(pub)
	for name, next := range map[string]*publisher{"of the same worker": pub, "of the next worker": p.publisher(true)} {
		p.erase()
		pub.reconnects = ^uint64(0) // it looks what the log has
		p.print(3000)
		p.publish(next)
		if from, to := p.kept(); from < 4<<20 || to != p.size {
			t.Errorf("by the publisher %s the log has bytes %d to %d, want the last, up to %d", name, from, to, p.size)
		}
	}
}

func TestOutputThatAServerMayLoseStaysOnTheDisk(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	pub.settles = time.Hour
	p.print(4 << 20)
	p.publish(pub)
	p.publish(pub)
	if n := p.onDisk(); n < 4<<20 {
		t.Errorf("the file takes %d bytes of the disk", n)
	}
}
