package supervise_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// sparseFile makes a file with a hole of this size in MiB, and with four bytes after it.
func (s *sandbox) sparseFile(hole int64) {
	s.t.Helper()
	s.mustSh(fmt.Sprintf("mkdir /tmp/s && cd /tmp/s && truncate -s %dM sparse && echo end >> sparse", hole))
}

func TestFiles_ASparseFileCostsLittle(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.sparseFile(10 << 10)
	f := s.fileSession("0")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got := get(t, f, protocol.FileRead{Path: "/tmp/s/sparse", Offset: 10 << 30}); got != "end\n" {
		t.Errorf("its end is %q", got)
	}
	m, err := f.Grep(ctx, protocol.FileGrep{Path: "/tmp/s", Expression: "end"})
	if err != nil || m.Bytes > 1<<20 {
		t.Errorf("grep read %d bytes of a binary file, %v", m.Bytes, err)
	}
	count, err := f.Copy(ctx, protocol.FileCopy{From: "/tmp/s/sparse", To: "/tmp/s/copy"})
	if err != nil || count.Bytes > 1<<20 {
		t.Errorf("copied %+v, %v; want the holes left out", count, err)
	}
	_, err = f.Edit(ctx, protocol.FileEdit{Path: "/tmp/s/sparse", Old: []byte("end")})
	refusedWith(t, "edit a large file", err, protocol.ResourceExhausted, protocol.ReasonTooLarge)
}

// lastOf counts bytes, and keeps the last four of each write.
type lastOf struct {
	n    int64
	last [4]byte
}

func (l *lastOf) Write(p []byte) (int, error) {
	copy(l.last[:], p[max(0, len(p)-len(l.last)):])
	l.n += int64(len(p))
	return len(p), nil
}

// A file whose hole is larger than the memory of the container is read and packed whole. `make files` does it with
// 10 GiB, which takes minutes.
func TestFiles_ASparseFileTravelsWhole(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	hole := int64(512)
	if os.Getenv(filesVariable) != "" {
		hole = 10 << 10
	}
	s.sparseFile(hole)
	f := s.fileSession("0")
	size := hole<<20 + 4
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	r, err := f.Read(ctx, protocol.FileRead{Path: "/tmp/s/sparse"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var read lastOf
	if _, err := io.CopyBuffer(&read, r, make([]byte, 1<<20)); err != nil || read.n != size ||
		string(read.last[:]) != "end\n" {
		t.Errorf("read %d bytes that end with %q, %v", read.n, read.last, err)
	}
	t.Logf("%d MiB are read in %s", hole, time.Since(began))
	began = time.Now()
	var packed lastOf
	count, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp/s"}, &packed)
	if err != nil || count.Bytes != size || packed.n < size {
		t.Errorf("packed %+v in %d bytes, %v", count, packed.n, err)
	}
	t.Logf("%d MiB are packed in %s", hole, time.Since(began))
	s.helpersAreSmall(mostHelperKiB)
}
