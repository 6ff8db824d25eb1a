package supervise_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

func runDir(t *testing.T) (*os.Root, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "execs/e"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir
}

func TestHostileRunDir_OnlyRegularFilesInTheRunDirectoryAreOpened(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(dir string) error{
		"a link to a host file": func(dir string) error { return os.Symlink(secret, dir+"/execs/e/stdout") },
		"a link to another exec's file": func(dir string) error {
			return os.Symlink("../f/stdout", dir+"/execs/e/stdout")
		},
		"a FIFO":      func(dir string) error { return unix.Mkfifo(dir+"/execs/e/stdout", 0o600) },
		"a directory": func(dir string) error { return os.Mkdir(dir+"/execs/e/stdout", 0o700) },
		"a socket":    func(dir string) error { return unix.Mknod(dir+"/execs/e/stdout", unix.S_IFSOCK|0o600, 0) },
		"a device": func(dir string) error {
			return unix.Mknod(dir+"/execs/e/stdout", unix.S_IFCHR|0o600, 0x0101)
		},
		"a link in place of the exec's directory": func(dir string) error {
			os.Remove(dir + "/execs/e")
			return os.Symlink("f", dir+"/execs/e")
		},
		"a file in place of the exec's directory": func(dir string) error {
			os.Remove(dir + "/execs/e")
			return os.WriteFile(dir+"/execs/e", nil, 0o600)
		},
		"a link in place of the directory of all execs": func(dir string) error {
			os.Rename(dir+"/execs", dir+"/other")
			return os.Symlink("other", dir+"/execs")
		},
	} {
		root, dir := runDir(t)
		os.Mkdir(dir+"/execs/f", 0o700)
		os.WriteFile(dir+"/execs/f/stdout", []byte("another exec's"), 0o600)
		if err := plant(dir); err != nil {
			t.Fatal(err)
		}
		if name == "a link in place of the directory of all execs" {
			os.WriteFile(dir+"/other/e/stdout", nil, 0o600)
		}
		f, err := supervise.OpenOutput(root, "e", "stdout")
		if protocol.CodeOf(err) != protocol.PermissionDenied {
			t.Errorf("opening %s: got %v, want permission_denied", name, err)
		}
		if f != nil {
			f.Close()
		}
	}
}

func TestHostileRunDir_NamesAreChecked(t *testing.T) {
	t.Parallel()
	root, _ := runDir(t)
	for _, id := range []string{"", "..", ".", "a/b", "../execs/e", "e\x00"} {
		if _, err := supervise.OpenOutput(root, id, "stdout"); protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("opening the output of exec %q: got %v, want invalid_argument", id, err)
		}
		if err := supervise.RemoveExec(root, id); protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("removing exec %q: got %v, want invalid_argument", id, err)
		}
	}
	if _, err := supervise.OpenOutput(root, "e", "exit"); protocol.CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("opening a stream named exit: got %v, want invalid_argument", err)
	}
	if _, err := supervise.OpenOutput(root, "e", "stdout"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("opening missing output: got %v, want not_found", err)
	}
}

func TestHostileRunDir_AHugeFileIsNotReadCompletely(t *testing.T) {
	t.Parallel()
	root, dir := runDir(t)
	f, err := os.Create(dir + "/execs/e/stdout")
	if err != nil {
		t.Fatal(err)
	}
	f.Write([]byte("head"))
	if err := f.Truncate(10 << 30); err != nil {
		t.Fatal(err)
	}
	f.Close()
	out, err := supervise.OpenOutput(root, "e", "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var buf [4]byte
	if n, err := out.ReadAt(buf[:], 0); n != 4 || err != nil || string(buf[:]) != "head" {
		t.Errorf("the first bytes of the file are %q, and the error is %v", buf[:n], err)
	}
}

func TestHostileRunDir_OnlyRecordsThatTheSupervisorSealedAreAccepted(t *testing.T) {
	t.Parallel()
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	zero := 0
	record := func(id string) control.Record {
		return control.Record{Boot: "b", Result: control.Result{ID: id, ExitCode: &zero, Inline: true, Stdout: []byte("x")}}
	}
	good := control.Seal(key, record("e"))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-3] ^= 1
	for name, data := range map[string][]byte{
		"a record sealed with another key": control.Seal(other, record("e")),
		"the record of another exec":       control.Seal(key, record("f")),
		"a changed record":                 flipped,
		"a record without its last byte":   good[:len(good)-1],
		"a file shorter than a seal":       good[:31],
		"a file with garbage":              bytes.Repeat([]byte("garbage"), 100),
		"a huge file":                      append(bytes.Clone(good), make([]byte, 10<<20)...),
	} {
		root, dir := runDir(t)
		os.WriteFile(dir+"/execs/e/exit", data, 0o600)
		if r, err := supervise.ReadRecord(root, key, "e"); err != control.ErrForged {
			t.Errorf("reading %s: got %+v and error %v, want ErrForged", name, r, err)
		}
	}
	root, dir := runDir(t)
	if _, err := supervise.ReadRecord(root, key, "e"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("reading a missing record: got %v, want not_found", err)
	}
	os.WriteFile(dir+"/execs/e/exit", nil, 0o600)
	if _, err := supervise.ReadRecord(root, key, "e"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("reading an empty record: got %v, want not_found", err)
	}
	os.WriteFile(dir+"/execs/e/exit", good, 0o600)
	r, err := supervise.ReadRecord(root, key, "e")
	if err != nil || r.Boot != "b" || code(r.Result) != "0" || r.Result.Inline {
		t.Errorf("reading the sealed record: got %+v and error %v", r, err)
	}
}

func TestRemoveExec_FollowsNoLinks(t *testing.T) {
	t.Parallel()
	root, dir := runDir(t)
	outside := t.TempDir()
	os.WriteFile(outside+"/keep", nil, 0o600)
	os.MkdirAll(dir+"/execs/e/deep/er", 0o700)
	os.Symlink(outside, dir+"/execs/e/deep/out")
	os.Symlink(outside, dir+"/execs/link")
	for _, id := range []string{"e", "link", "absent"} {
		if err := supervise.RemoveExec(root, id); err != nil {
			t.Errorf("removing exec %s: %v", id, err)
		}
	}
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Errorf("RemoveExec followed a link, and removed a file outside: %v", err)
	}
	if left, _ := os.ReadDir(dir + "/execs"); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}
