package sdk

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// tarBlock returns the header of an entry with any type, also one that a tar.Writer refuses to write.
func tarBlock(t testing.TB, name string, kind byte, size int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := tar.NewWriter(&buf).WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size,
		Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	block := buf.Bytes()
	const checksum, kindAt = 148, 156
	block[kindAt] = kind
	copy(block[checksum:], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[checksum:], fmt.Sprintf("%06o\x00 ", sum))
	return block
}

// padded fills a tar stream's last block.
func padded(data string) []byte { return append([]byte(data), make([]byte, -len(data)&511)...) }

// sparseTar returns a tar stream of about 3 KiB with a file of this size, all of which is a hole.
func sparseTar(t testing.TB, size string) []byte {
	t.Helper()
	var records string
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=hole",
		"GNU.sparse.realsize=" + size} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r) // the length has two digits
	}
	holes := padded("1\n" + size + "\n0\n")
	stream := append(tarBlock(t, "x", tar.TypeXHeader, int64(len(records))), padded(records)...)
	stream = append(stream, tarBlock(t, "hole", tar.TypeReg, int64(len(holes)))...)
	return append(append(stream, holes...), make([]byte, 1024)...)
}

// A small stream must not become a large file: WithMaxBytes counts the bytes of the stream.
func TestASparseEntryIsRefused(t *testing.T) {
	target, _ := outside(t)
	root, err := os.OpenRoot(target)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := &extraction{ctx: t.Context(), root: root}
	err = x.run(bytes.NewReader(sparseTar(t, "1048576")))
	if e := protocol.AsError(err); err == nil || e.Code != protocol.PermissionDenied {
		t.Errorf("got %v", err)
	}
	if all, err := os.ReadDir(target); err != nil || len(all) != 0 {
		t.Errorf("left are %v, %v", all, err)
	}
}

// No tar stream changes anything outside of the target. Links that stay lead to something below it, and an error has a
// code.
func FuzzExtract(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// Writing to a buffer does not fail.
	_ = w.WriteHeader(&tar.Header{Name: "d/l", Linkname: "..", Typeflag: tar.TypeSymlink})
	_ = w.WriteHeader(&tar.Header{Name: "d/l/secret", Typeflag: tar.TypeReg, Size: 1})
	_, _ = w.Write([]byte("x"))
	_ = w.WriteHeader(&tar.Header{Name: "h", Linkname: "d/l/secret", Typeflag: tar.TypeLink})
	_ = w.WriteHeader(&tar.Header{Name: "out", Linkname: "../secret", Typeflag: tar.TypeSymlink})
	_ = w.WriteHeader(&tar.Header{Name: "out", Typeflag: tar.TypeReg, Size: 1})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	f.Add(buf.Bytes(), false)
	f.Add(buf.Bytes(), true)
	f.Add(sparseTar(f, "1048576"), false)
	f.Fuzz(func(t *testing.T, data []byte, keepLinks bool) {
		target, _ := outside(t) // checks at the end what is beside the target
		root, err := os.OpenRoot(target)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		x := &extraction{ctx: t.Context(), root: root, keepLinks: keepLinks}
		err = x.run(bytes.NewReader(data))
		if typed := (*protocol.Error)(nil); err != nil && !errors.As(err, &typed) {
			t.Errorf("the error has no code: %v", err)
		}
		if err == nil && x.count.Bytes > int64(len(data)) {
			t.Errorf("%d bytes became %d", len(data), x.count.Bytes)
		}
		if !keepLinks {
			linksStay(t, target)
		}
	})
}

// linksStay checks that the links in target lead to something below target.
func linksStay(t *testing.T, target string) {
	t.Helper()
	err := filepath.WalkDir(target, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			to, err := filepath.EvalSymlinks(at)
			if err == nil && to != target && !strings.HasPrefix(to, target+"/") {
				t.Errorf("%q leads to %q", at, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
