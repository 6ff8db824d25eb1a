package output

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// If a command ran on another host before, its output continues at the log's offsets. Output that was overwritten in
// the file before it was published is missing from the log: the offsets have a gap.
func TestCommandLogContinuesAndSkipsOverwrittenOutput(t *testing.T) {
	t.Parallel()
	host, dir := newHost(t), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, control.PrimaryDir), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, control.PrimaryDir, control.StdoutName)
	const size, earlier = control.PrimaryWindow + 5000, 700
	if err := os.WriteFile(file, text(0, size), 0o600); err != nil {
		t.Fatal(err)
	}
	l := host.NewCommandLog(CommandLogConfig{
		Key: protocol.SandboxKey{Tenant: "default", ID: "s"}, Name: protocol.PrimaryLog, RunDir: func() string { return dir },
		Hosts:   func() []protocol.OutputHost { return here },
		Earlier: func([2]int64) ([2]int64, error) { return [2]int64{earlier, 0}, nil }, Logger: slog.New(slog.DiscardHandler),
	})
	l.Grow(size, 0)
	l.Finish(t.Context(), func() bool { return false })
	if l.published() != [2]int64{size, 0} {
		t.Errorf("published %v bytes, want %d of stdout", l.published(), size)
	}
	at := int64(5000)
	_, err := host.conn.ReadOutput(t.Context(), storedHere(protocol.PrimaryLog), 0, func(k jetstream.Chunk) error {
		if end := at + int64(len(k.Data)); k.Offset != earlier+at || !bytes.Equal(k.Data, text(at, end)) {
			t.Fatalf("a chunk of %d bytes has offset %d, or is not the output at %d", len(k.Data), k.Offset, earlier+at)
		}
		at += int64(len(k.Data))
		return nil
	})
	if err != nil || at != size {
		t.Errorf("the log has the output up to byte %d of %d: %v", at, size, err)
	}
	stdout, stderr, err := host.conn.OutputEnd(t.Context(), storedHere(protocol.PrimaryLog))
	if err != nil || stdout != earlier+size || stderr != 0 {
		t.Errorf("the log's streams end at %d and %d, want %d and 0: %v", stdout, stderr, earlier+size, err)
	}
	if last := l.Last(); !bytes.Equal(last, text(size-protocol.MaxLastOutput, size)) {
		t.Errorf("Last returns %d bytes that are not the last %d of the output", len(last), protocol.MaxLastOutput)
	}
}
