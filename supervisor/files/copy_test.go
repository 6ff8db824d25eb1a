package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// swapping returns a directory with a file, and another directory that nothing may change.
func swapping(t *testing.T) (source, top, outside string) {
	t.Helper()
	dir := t.TempDir()
	source, top, outside = filepath.Join(dir, "source"), filepath.Join(dir, "top"), filepath.Join(dir, "outside")
	if err := errors.Join(os.MkdirAll(source+"/d", 0o755), os.Mkdir(outside, 0o755), os.Mkdir(top, 0o755),
		os.WriteFile(source+"/d/file", []byte("copied"), 0o600), os.Symlink("copied", source+"/d/link"),
		os.WriteFile(outside+"/file", []byte("untouched"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return source, top, outside
}

// A link that replaces a directory of the destination after it was made is not followed.
func TestACopyFollowsNoLinkThatReplacesADirectory(t *testing.T) {
	source, top, outside := swapping(t)
	h := &helper{cwd: "/"}
	from, fromErr := h.place("from", source)
	to, toErr := h.place("to", top)
	if err := errors.Join(fromErr, toErr); err != nil {
		t.Fatal(err)
	}
	defer from.close()
	defer to.close()
	c := &copying{ctx: t.Context(), overwrite: true, recursive: true}
	var stat unix.Stat_t
	if err := errors.Join(unix.Stat(source, &stat), c.directory(to.dir, to.name, &stat)); err != nil {
		t.Fatal(err)
	}
	defer c.leave(0)
	w := walk{ctx: t.Context(), depth: -1, visit: func(e *entry) error {
		err := c.entry(e)
		if e.rel == "d" {
			err = errors.Join(err, os.Rename(top+"/d", top+"/moved"), os.Symlink(outside, top+"/d"))
		}
		return err
	}}
	if err := w.below(source); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(outside + "/file")
	names, _ := os.ReadDir(outside)
	if err != nil || string(text) != "untouched" || len(names) != 1 {
		t.Errorf("the copy changed the directory outside: %v, %q, %v", names, text, err)
	}
	if text, err = os.ReadFile(top + "/moved/file"); err != nil || string(text) != "copied" {
		t.Errorf("the copy is not in the directory that it made: %q, %v", text, err)
	}
	if err := c.directory(c.dirs[0], "d", &stat); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a link is used as a directory: %v", err)
	}
}

// A link that replaces the source after the copy has looked at it is not followed.
func TestACopyDoesNotFollowALinkThatReplacesItsSource(t *testing.T) {
	source, top, outside := swapping(t)
	h := &helper{cwd: "/"}
	from, fromErr := h.place("from", source)
	to, toErr := h.place("to", top+"/copy")
	if err := errors.Join(fromErr, toErr); err != nil {
		t.Fatal(err)
	}
	defer from.close()
	defer to.close()
	if err := errors.Join(os.Rename(source, source+"-moved"), os.Symlink(outside, source)); err != nil {
		t.Fatal(err)
	}
	c := &copying{ctx: t.Context(), recursive: true}
	err := c.tree(from, to)
	if _, statErr := os.Stat(top + "/copy"); err == nil || !errors.Is(statErr, os.ErrNotExist) {
		t.Errorf("a link in place of the source was followed: %v, %v", err, statErr)
	}
}

// A directory that a request makes is not described through a link that replaces it.
func TestANewDirectoryIsNotDescribedThroughALink(t *testing.T) {
	_, top, outside := swapping(t)
	if err := os.Symlink(outside, top+"/new"); err != nil {
		t.Fatal(err)
	}
	p, err := (&helper{cwd: top}).place("path", "new")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	mode := uint32(0o777)
	err = p.describeDirectory(&giver{}, &protocol.FileMkdir{Mode: &mode})
	info, statErr := os.Stat(outside)
	if err == nil || statErr != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("described through a link: %v, %v, %v", err, info, statErr)
	}
}

// A copy into itself is found also if the destination leads through a link.
func TestACopyIntoItselfThroughALinkIsRefused(t *testing.T) {
	source, top, _ := swapping(t)
	if err := os.Symlink(source+"/d", top+"/l"); err != nil {
		t.Fatal(err)
	}
	c := served(t, "/")
	for _, to := range []string{top + "/l/in", top + "/l/", source, source + "/d/in", source + "/."} {
		reply := ask(t, c, control.FileCall{Copy: &protocol.FileCopy{From: source, To: to, Recursive: true, Overwrite: true}})
		if reply.Error == nil || reply.Error.Field != "to" {
			t.Errorf("to %s: got error %v, want one of the field to", to, reply.Error)
		}
	}
}

// Slashes at the end of a path, and the directory of the container itself, are names like others.
func TestPathsOfACopyMayEndInASlash(t *testing.T) {
	source, top, outside := swapping(t)
	if err := os.Symlink(outside, top+"/l"); err != nil {
		t.Fatal(err)
	}
	c := served(t, source)
	for _, r := range []struct {
		from, to string
		ok       bool
	}{
		{source + "/", top + "/", true}, {source + "//", top + "/a//", true}, {"d/file", top + "/b", true},
		{"d/.", top + "/.", true},
		{"d", top + "/l", false}, {"d/file", top + "/c/", false}, {"d/file/", top + "/c", false},
		{"d/link", top + "/e/f", false},
	} {
		reply := ask(t, c, control.FileCall{Copy: &protocol.FileCopy{From: r.from, To: r.to, Recursive: true,
			Overwrite: true}})
		if (reply.Error == nil) != r.ok {
			t.Errorf("from %s to %s: %+v, %v", r.from, r.to, reply.Count, reply.Error)
		}
	}
	for _, path := range []string{"/", "//", ".", "..", top + "/.", top + "/../", ""} {
		reply := ask(t, c, control.FileCall{Remove: &protocol.FileRemove{Path: path, Recursive: true, Missing: true}})
		if reply.Error == nil || reply.Error.Field != "path" {
			t.Errorf("remove %q: %+v, %v", path, reply.Count, reply.Error)
		}
	}
	reply := ask(t, c, control.FileCall{Remove: &protocol.FileRemove{Path: top + "/none/x", Recursive: true,
		Missing: true}})
	if reply.Error != nil || reply.Count.Entries != 0 {
		t.Errorf("remove what does not exist: %+v", reply)
	}
	if text, err := os.ReadFile(outside + "/file"); err != nil || string(text) != "untouched" {
		t.Errorf("a link was followed: %q, %v", text, err)
	}
}

func TestADeepTreeIsCopiedAndRemoved(t *testing.T) {
	const deep = 1000
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/from"+strings.Repeat("/d", deep), 0o755); err != nil {
		t.Fatal(err)
	}
	c := served(t, dir)
	reply := ask(t, c, control.FileCall{Copy: &protocol.FileCopy{From: "from", To: "to", Recursive: true}})
	if reply.Error != nil || reply.Count.Entries != deep+1 {
		t.Errorf("copied %+v, %v", reply.Count, reply.Error)
	}
	reply = ask(t, c, control.FileCall{Remove: &protocol.FileRemove{Path: "to", Recursive: true}})
	if reply.Error != nil || reply.Count.Entries != deep+1 {
		t.Errorf("removed %+v, %v", reply.Count, reply.Error)
	}
}
