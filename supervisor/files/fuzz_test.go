package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// No tar stream changes anything outside of its directory, and none ends the helper.
func FuzzUnpack(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// Writing to a buffer does not fail.
	_ = w.WriteHeader(&tar.Header{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink})
	_ = w.WriteHeader(&tar.Header{Name: "l/keep", Typeflag: tar.TypeReg, Size: 1})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > packet.MaxBody {
			return
		}
		dir := t.TempDir()
		keep := filepath.Join(dir, "keep")
		if err := os.WriteFile(keep, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := served(t, "/")
		call := control.FileCall{Unpack: &protocol.FileUnpack{Path: dir + "/tree", Overwrite: true}}
		room := packet.NewData()
		copy(room[packet.DataAt:], data)
		if err := c.SendMessage(&call, -1); err != nil {
			t.Fatal(err)
		}
		if err := c.SendData(room, len(data)); err != nil {
			t.Fatal(err)
		}
		if err := c.SendEnd(); err != nil {
			t.Fatal(err)
		}
		if kind, _, _, err := c.Receive(); err != nil || kind != packet.Message {
			t.Fatalf("the reply has kind %q and error %v", kind, err)
		}
		names, err := os.ReadDir(dir)
		text, _ := os.ReadFile(keep)
		if err != nil || len(names) > 2 || string(text) != "kept" {
			t.Fatalf("the stream changed something outside: %v, %q", names, text)
		}
	})
}

// Paths and patterns of any bytes are answered. Operations with relative paths below a directory, without "..", change
// nothing beside it.
func FuzzPaths(f *testing.F) {
	f.Add("a/../b", "**/*.{go,txt}")
	f.Add("\x00", "[")
	f.Add("a", "a/b/")
	f.Add("d/.", "//.")
	f.Fuzz(func(t *testing.T, path, pattern string) {
		dir := t.TempDir()
		keep, below := filepath.Join(dir, "keep"), filepath.Join(dir, "below")
		err := errors.Join(os.WriteFile(keep, []byte("kept"), 0o600), os.MkdirAll(below+"/d", 0o755),
			os.WriteFile(below+"/d/f", []byte("x"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		c := served(t, dir)
		for _, call := range []control.FileCall{
			{Stat: &protocol.FileStat{Paths: []string{path}}},
			{Glob: &protocol.FileGlob{Path: dir, Pattern: pattern}},
			{Grep: &protocol.FileGrep{Path: dir, Expression: pattern}},
		} {
			ask(t, c, call)
		}
		inside := func(path string) string { return below + "/" + strings.ReplaceAll(path, "..", "") }
		a, b := inside(path), inside(pattern)
		for _, call := range []control.FileCall{
			{Mkdir: &protocol.FileMkdir{Path: a, Parents: true}},
			{Copy: &protocol.FileCopy{From: below + "/d", To: b, Recursive: true, Overwrite: true}},
			{Copy: &protocol.FileCopy{From: b, To: a, Recursive: true}},
			{Move: &protocol.FileMove{From: b, To: a, Overwrite: true}},
			{Write: &protocol.FileWrite{Path: b, Parents: true}},
			{Remove: &protocol.FileRemove{Path: a, Recursive: true}},
		} {
			if call.Write != nil {
				write(t, c, call)
			} else {
				ask(t, c, call)
			}
		}
		names, err := os.ReadDir(dir)
		text, _ := os.ReadFile(keep)
		if err != nil || len(names) > 2 || string(text) != "kept" {
			t.Fatalf("paths %q and %q changed something beside the directory: %v, %q", a, b, names, text)
		}
	})
}

// write sends a call that takes a stream, with an empty stream.
func write(t *testing.T, c *packet.Conn, call control.FileCall) {
	t.Helper()
	if err := errors.Join(c.SendMessage(&call, -1), c.SendEnd()); err != nil {
		t.Fatal(err)
	}
	if kind, _, _, err := c.Receive(); err != nil || kind != packet.Message {
		t.Fatalf("the reply has kind %q and error %v", kind, err)
	}
}
