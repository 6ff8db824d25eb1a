package supervise_test

import (
	"io"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func BenchmarkFiles(b *testing.B) {
	s := newSandbox(b, option{})
	f := s.fileSession("0")
	ctx := fileContext(b)
	kilobyte := strings.Repeat("x", 1024)
	b.Run("stat", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Stat(ctx, protocol.FileStat{Paths: []string{"/tmp"}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write 1 KB", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Write(ctx, protocol.FileWrite{Path: "/tmp/small"}, strings.NewReader(kilobyte)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stat with a new helper", func(b *testing.B) {
		for b.Loop() {
			other, err := s.link.Files(ctx, "0", "")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := other.Stat(ctx, protocol.FileStat{Paths: []string{"/tmp"}}); err != nil {
				b.Fatal(err)
			}
			other.Close()
		}
	})
	s.sh("truncate -s 1G /tmp/big")
	b.Run("read 1 GB", func(b *testing.B) {
		b.SetBytes(1 << 30)
		for b.Loop() {
			r, err := f.Read(ctx, protocol.FileRead{Path: "/tmp/big"})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 256<<10)); err != nil {
				b.Fatal(err)
			}
			r.Close()
		}
	})
}
