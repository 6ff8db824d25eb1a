package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing/iotest"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// content returns bytes in which any damage by a transfer shows: every value of a byte, at changing distances.
func content(size int) string {
	b := make([]byte, size)
	state := uint32(size)*2654435761 + 1
	for i := range b {
		state = state*1664525 + 1013904223
		b[i] = byte(state >> 24)
	}
	return string(b)
}

func contents() []Behaviour {
	var rows []Behaviour
	for _, h := range hostileTexts {
		rows = append(rows, row("a file holds "+h.name, func(p *probe) {
			p.write(p.path("file"), h.text)
			p.holds(p.path("file"), h.text)
		}))
	}
	const some = 64 // bytes that one row tries
	for value := 0; value < 256; value += some {
		rows = append(rows, row(fmt.Sprintf("a file holds the bytes %#02x to %#02x at each place", value, value+some-1),
			func(p *probe) {
				var all strings.Builder
				for b := value; b < value+some; b++ {
					c := string([]byte{byte(b)})
					all.WriteString(c + "a" + c + c + "\n" + c)
				}
				p.write(p.path("file"), all.String())
				p.holds(p.path("file"), all.String())
			}))
	}
	for _, size := range []int{2, 3, 57, 58, 4096, 65536, 96 << 10, 97 << 10, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1 << 20,
		5 << 20} {
		rows = append(rows, row(fmt.Sprintf("a file of %d bytes is complete", size), func(p *probe) {
			p.write(p.path("file"), content(size))
			p.holds(p.path("file"), content(size))
		}))
	}
	return append(rows, row("a command sees the bytes that were written", func(p *probe) {
		p.write(p.path("file"), content(200<<10))
		p.same("stdout", p.run("cat "+environment.Quote(p.path("file")), plain).Stdout, content(200<<10))
	}), row("the bytes that a command wrote are read", func(p *probe) {
		p.makeDir()
		p.run(octal("a\x00\xff\r\n")+" >file", environment.Options{Dir: p.dir})
		p.holds(p.path("file"), "a\x00\xff\r\n")
	}))
}

func paths() []Behaviour {
	var rows []Behaviour
	for _, name := range hostileNames {
		rows = append(rows, row("a file named "+slug(name)+" is written, listed, read and removed", func(p *probe) {
			p.write(p.path(name), "in "+name)
			p.holds(p.path(name), "in "+name)
			p.lists(p.dir, name)
			if err := p.env.RemoveFile(p.ctx, p.path(name)); err != nil {
				p.fail("remove: %w", err)
			}
		}))
	}
	for _, bad := range []struct{ name, path string }{
		{"an empty path", ""}, {"a path with NUL", "/tmp/a\x00b"}, {"a path that is not UTF-8", "/tmp/\xff"},
		{"a path that is too long", "/" + strings.Repeat("a", environment.MaxPath)},
	} {
		rows = append(rows, row(bad.name+" is refused by each call", func(p *probe) {
			_, err := p.env.ReadFile(p.ctx, bad.path)
			p.names(err, "path")
			p.names(p.env.WriteFile(p.ctx, bad.path, nil), "path")
			p.names(p.env.RemoveFile(p.ctx, bad.path), "path")
			_, err = p.env.ListFiles(p.ctx, bad.path)
			p.names(err, "path")
		}))
	}
	return append(rows,
		row("a relative path begins where commands begin", func(p *probe) {
			name := "conformance-" + word()
			p.write(name, "relative")
			defer func() { _ = p.env.RemoveFile(context.WithoutCancel(p.ctx), name) }() // clean up
			p.prints("relative", "cat "+name, plain)
			p.holds("./"+name, "relative")
		}),
		row("a path with dots leads where it says", func(p *probe) {
			p.write(p.path("a/b/file"), "x")
			p.holds(p.path("a/../a/./b//file"), "x")
		}),
		row("a long name is no problem", func(p *probe) {
			name := strings.Repeat("n", 200)
			p.write(p.path(name), "x")
			p.lists(p.dir, name)
		}),
		row("a deep path is no problem", func(p *probe) {
			deep := p.path(strings.Repeat("d/", 60) + "file")
			p.write(deep, "x")
			p.holds(deep, "x")
		}))
}

// kinds returns the types of the entries of a directory by name.
func (p *probe) kinds(dir string) map[string]environment.FileType {
	kinds := map[string]environment.FileType{}
	for _, f := range p.list(dir) {
		kinds[f.Name] = f.Type
	}
	return kinds
}

func files() []Behaviour {
	return slices.Concat(writing(), rewriting(), reading(), removing(), listing(), links())
}

func writing() []Behaviour {
	return []Behaviour{
		row("a write replaces the content", func(p *probe) {
			p.write(p.path("file"), strings.Repeat("long", 100))
			p.write(p.path("file"), "short")
			p.holds(p.path("file"), "short")
		}),
		row("a write makes the directories above", func(p *probe) {
			p.write(p.path("a/b/c/file"), "x")
			p.lists(p.path("a/b"), "c")
		}),
		row("a write to a directory is refused", func(p *probe) {
			p.write(p.path("d/file"), "x")
			p.refused(p.env.WriteFile(p.ctx, p.path("d"), []byte("y")), environment.ErrIsDirectory)
			p.holds(p.path("d/file"), "x")
		}),
		row("a write to a path with a slash at its end is refused", func(p *probe) {
			p.write(p.path("d/file"), "x")
			p.refused(p.env.WriteFile(p.ctx, p.path("d")+"/", []byte("y")), environment.ErrIsDirectory)
		}),
		row("a write below a file is refused", func(p *probe) {
			p.write(p.path("file"), "x")
			p.refused(p.env.WriteFile(p.ctx, p.path("file/below"), []byte("y")), environment.ErrNotDirectory)
			p.refused(p.env.WriteFile(p.ctx, p.path("file/deep/below"), []byte("y")), environment.ErrNotDirectory)
			p.holds(p.path("file"), "x")
		}),
		row("a write leaves no other file", func(p *probe) {
			p.write(p.path("file"), content(300<<10))
			p.write(p.path("file"), "again")
			p.lists(p.dir, "file")
		}),
		row("a new file has mode 0644", func(p *probe) {
			p.write(p.path("file"), "x")
			p.prints("-rw-r--r--\n", "ls -l file | cut -c1-10", environment.Options{Dir: p.dir})
		}, environment.POSIX),
	}
}

func rewriting() []Behaviour {
	return []Behaviour{
		row("a file that is replaced keeps its mode", func(p *probe) {
			p.write(p.path("file"), "x")
			p.prints("", "chmod 750 file", environment.Options{Dir: p.dir})
			p.write(p.path("file"), "y")
			p.prints("-rwxr-x---\n", "ls -l file | cut -c1-10", environment.Options{Dir: p.dir})
		}, environment.POSIX),
		row("a file that cannot be written by its owner's mode keeps its content or is replaced", func(p *probe) {
			p.write(p.path("file"), "old")
			p.prints("", "chmod 444 file", environment.Options{Dir: p.dir})
			if err := p.env.WriteFile(p.ctx, p.path("file"), []byte("new")); err != nil {
				p.refused(err, environment.ErrPermission)
				p.holds(p.path("file"), "old")
				return
			}
			p.holds(p.path("file"), "new")
		}, environment.POSIX),
		row("a write to a FIFO is refused and does not wait", func(p *probe) {
			p.fifo()
			p.refused(p.env.WriteFile(p.ctx, p.path("fifo"), []byte("x")), environment.ErrNotRegular)
		}, environment.POSIX),
		row("a write is not made if the context has ended", func(p *probe) {
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			p.refused(p.env.WriteFile(ctx, p.path("file"), []byte("x")), environment.ErrCancelled)
			_, err := p.env.ReadFile(p.ctx, p.path("file"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("a text is written and read", func(p *probe) {
			if err := environment.WriteText(p.ctx, p.env, p.path("file"), "é\n"); err != nil {
				p.fail("%w", err)
			}
			if text, err := environment.ReadText(p.ctx, p.env, p.path("file")); text != "é\n" || err != nil {
				p.fail("%q, %v", text, err)
			}
		}),
	}
}

// exitNoProgram is the exit code of a shell that does not find a program.
const exitNoProgram = 127

func (p *probe) fifo() {
	p.makeDir()
	r := p.run("mkfifo fifo", environment.Options{Dir: p.dir})
	if r.ExitCode == exitNoProgram {
		p.missing("no program mkfifo")
	}
	p.exits(r, 0)
}

func reading() []Behaviour {
	return []Behaviour{
		row("a file that does not exist is not found", func(p *probe) {
			_, err := p.env.ReadFile(p.ctx, p.path("none"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("a path below a file is not found", func(p *probe) {
			p.write(p.path("file"), "x")
			_, err := p.env.ReadFile(p.ctx, p.path("file/below"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("a directory is not read", func(p *probe) {
			p.makeDir()
			_, err := p.env.ReadFile(p.ctx, p.dir)
			p.refused(err, environment.ErrIsDirectory)
		}),
		row("a FIFO is not read and does not wait", func(p *probe) {
			p.fifo()
			_, err := p.env.ReadFile(p.ctx, p.path("fifo"))
			p.refused(err, environment.ErrNotRegular)
		}, environment.POSIX),
		row("a device is not read", func(p *probe) {
			_, err := p.env.ReadFile(p.ctx, "/dev/full")
			p.refused(err, environment.ErrNotRegular)
		}, environment.POSIX),
		row("a file beyond the limit is refused", func(p *probe) {
			p.has("truncate")
			p.makeDir()
			p.prints("", fmt.Sprintf("truncate -s %d file", environment.MaxReadFile+1), environment.Options{Dir: p.dir})
			_, err := p.env.ReadFile(p.ctx, p.path("file"))
			p.refused(err, environment.ErrTooLarge)
		}, environment.POSIX),
		row("a text that is not UTF-8 is refused", func(p *probe) {
			p.write(p.path("file"), "\xff")
			_, err := environment.ReadText(p.ctx, p.env, p.path("file"))
			p.refused(err, environment.ErrGarbled)
		}),
		row("a read ends with its context", func(p *probe) {
			p.write(p.path("file"), "x")
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			_, err := p.env.ReadFile(ctx, p.path("file"))
			p.refused(err, environment.ErrCancelled)
		}),
	}
}

func removing() []Behaviour {
	return []Behaviour{
		row("a removed file is gone", func(p *probe) {
			p.write(p.path("file"), "x")
			if err := p.env.RemoveFile(p.ctx, p.path("file")); err != nil {
				p.fail("%w", err)
			}
			_, err := p.env.ReadFile(p.ctx, p.path("file"))
			p.refused(err, environment.ErrNotFound)
			p.refused(p.env.RemoveFile(p.ctx, p.path("file")), environment.ErrNotFound)
		}),
		row("a directory is not removed", func(p *probe) {
			p.write(p.path("d/file"), "x")
			p.refused(p.env.RemoveFile(p.ctx, p.path("d")), environment.ErrIsDirectory)
			p.holds(p.path("d/file"), "x")
		}),
		row("an empty directory is not removed", func(p *probe) {
			p.write(p.path("d/file"), "x")
			if err := p.env.RemoveFile(p.ctx, p.path("d/file")); err != nil {
				p.fail("%w", err)
			}
			p.refused(p.env.RemoveFile(p.ctx, p.path("d")), environment.ErrIsDirectory)
			p.lists(p.dir, "d")
			p.lists(p.path("d"))
		}),
		row("a FIFO is not removed", func(p *probe) {
			p.fifo()
			p.refused(p.env.RemoveFile(p.ctx, p.path("fifo")), environment.ErrNotRegular)
			p.lists(p.dir, ".made", "fifo")
		}, environment.POSIX),
		row("a device is neither read, written nor removed", func(p *probe) {
			p.makeDir()
			// A device of its own: an environment that fails must not remove one that the system needs.
			if p.run("mknod device c 1 3", environment.Options{Dir: p.dir}).ExitCode != 0 {
				p.missing("the user may not make a device")
			}
			_, err := p.env.ReadFile(p.ctx, p.path("device"))
			p.refused(err, environment.ErrNotRegular)
			p.refused(p.env.WriteFile(p.ctx, p.path("device"), []byte("x")), environment.ErrNotRegular)
			p.refused(p.env.RemoveFile(p.ctx, p.path("device")), environment.ErrNotRegular)
			if k := p.kinds(p.dir); k["device"] != environment.TypeOther {
				p.fail("the device became %q", k["device"])
			}
		}, environment.POSIX),
	}
}

func listing() []Behaviour {
	return []Behaviour{
		row("a directory that does not exist is not found when it is listed", func(p *probe) {
			_, err := p.env.ListFiles(p.ctx, p.path("none"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("a file is not listed", func(p *probe) {
			p.write(p.path("file"), "x")
			_, err := p.env.ListFiles(p.ctx, p.path("file"))
			p.refused(err, environment.ErrNotDirectory)
		}),
		row("an empty directory has no entries", func(p *probe) {
			p.write(p.path("d/file"), "x")
			_ = p.env.RemoveFile(p.ctx, p.path("d/file")) // the next call shows whether it is gone
			p.lists(p.path("d"))
		}),
		row("entries are sorted by their bytes", func(p *probe) {
			for _, name := range []string{"b", "a", "B", "é", "1", "_", "aa", "-", ".h"} {
				p.write(p.path(name), "")
			}
			p.lists(p.dir, "-", ".h", "1", "B", "_", "a", "aa", "b", "é")
		}),
		row("entries have their types", func(p *probe) {
			p.write(p.path("file"), "")
			p.write(p.path("directory/file"), "")
			if k := p.kinds(p.dir); k["file"] != environment.TypeFile || k["directory"] != environment.TypeDirectory {
				p.fail("%v", k)
			}
		}),
		row("links and FIFOs have their types", func(p *probe) {
			p.fifo()
			p.prints("", "ln -s /nowhere broken; ln -s . loop", environment.Options{Dir: p.dir})
			k := p.kinds(p.dir)
			if k["fifo"] != environment.TypeOther || k["broken"] != environment.TypeLink || k["loop"] != environment.TypeLink {
				p.fail("%v", k)
			}
		}, environment.POSIX),
		row("two thousand entries are listed", func(p *probe) {
			p.makeDir()
			p.prints("", "i=0; while [ $i -lt 2000 ]; do : >f$i; i=$((i+1)); done", environment.Options{Dir: p.dir})
			if n := len(p.list(p.dir)); n != 2001 {
				p.fail("%d entries", n)
			}
		}, environment.POSIX),
		row("a list of the root works", func(p *probe) {
			if len(p.list("/")) == 0 {
				p.fail("it is empty")
			}
		}),
		row("a directory with a slash at its end is listed", func(p *probe) {
			p.write(p.path("file"), "")
			p.lists(p.dir+"/", "file")
		}),
	}
}

func links() []Behaviour {
	link := func(name string, check func(p *probe)) Behaviour {
		return row(name, func(p *probe) {
			p.write(p.path("target"), "old")
			p.prints("", "ln -s target link; ln -s none broken; ln -s loop loop; mkdir d; ln -s d dlink",
				environment.Options{Dir: p.dir})
			check(p)
		}, environment.POSIX)
	}
	return []Behaviour{
		link("a link is read", func(p *probe) { p.holds(p.path("link"), "old") }),
		link("a write follows a link", func(p *probe) {
			p.write(p.path("link"), "new")
			p.holds(p.path("target"), "new")
			if k := p.kinds(p.dir); k["link"] != environment.TypeLink {
				p.fail("the link became a %s", k["link"])
			}
		}),
		link("a write through a link that leads nowhere makes the file", func(p *probe) {
			p.write(p.path("broken"), "new")
			p.holds(p.path("none"), "new")
		}),
		link("a broken link is not found", func(p *probe) {
			_, err := p.env.ReadFile(p.ctx, p.path("broken"))
			p.refused(err, environment.ErrNotFound)
		}),
		link("a link to a directory is listed", func(p *probe) {
			p.write(p.path("d/file"), "")
			p.lists(p.path("dlink"), "file")
		}),
		link("a write below a link to a directory works", func(p *probe) {
			p.write(p.path("dlink/file"), "x")
			p.holds(p.path("d/file"), "x")
		}),
		link("the removal of a link keeps its target", func(p *probe) {
			for _, name := range []string{"link", "broken", "loop", "dlink"} {
				if err := p.env.RemoveFile(p.ctx, p.path(name)); err != nil {
					p.fail("remove %s: %w", name, err)
				}
			}
			p.lists(p.dir, "d", "target")
		}),
		link("a link that leads to itself is refused", func(p *probe) {
			switch err := p.env.WriteFile(p.ctx, p.path("loop"), nil); environment.KindOf(err) {
			case "":
				p.fail("it was written")
			case environment.Unavailable, environment.Cancelled, environment.Timeout, environment.Garbled:
				p.fail("the refusal is no answer about the link: %w", err)
			}
			if k := p.kinds(p.dir); k["loop"] != environment.TypeLink {
				p.fail("the link became %q", k["loop"])
			}
		}),
	}
}

func permissions() []Behaviour {
	denied := func(name, mode string, call func(p *probe) error) Behaviour {
		return row(name, func(p *probe) {
			if isRoot(p) {
				p.missing("commands run as root, who may do everything")
			}
			p.write(p.path("d/file"), "x")
			p.prints("", "chmod "+mode, environment.Options{Dir: p.dir})
			err := call(p)
			p.run("chmod -R u+rwx .", environment.Options{Dir: p.dir})
			p.refused(err, environment.ErrPermission)
		}, environment.POSIX)
	}
	read := func(p *probe) error { _, err := p.env.ReadFile(p.ctx, p.path("d/file")); return err }
	list := func(p *probe) error { _, err := p.env.ListFiles(p.ctx, p.path("d")); return err }
	return []Behaviour{
		denied("a file that may not be read is denied", "0 d/file", read),
		denied("a file below a directory that may not be entered is denied", "0 d", read),
		denied("a directory that may not be read is denied", "0 d", list),
		denied("a new file in a directory that may not be written is denied", "555 d", func(p *probe) error {
			return p.env.WriteFile(p.ctx, p.path("d/new"), []byte("x"))
		}),
		denied("a removal from a directory that may not be written is denied", "555 d", func(p *probe) error {
			return p.env.RemoveFile(p.ctx, p.path("d/file"))
		}),
		denied("a new directory where none may be made is denied", "555 d", func(p *probe) error {
			return p.env.WriteFile(p.ctx, p.path("d/new/file"), []byte("x"))
		}),
	}
}

// stream makes a row for environments that are Streamers.
func stream(name string, check func(p *probe, s environment.Streamer)) Behaviour {
	return row(name, func(p *probe) { check(p, p.env.(environment.Streamer)) }, environment.Streams)
}

func streams() []Behaviour {
	return append(streamsRefused(), []Behaviour{
		stream("a stream of 3 MiB is written and read", func(p *probe, s environment.Streamer) {
			want := content(3 << 20)
			if err := s.WriteFileFrom(p.ctx, p.path("a/file"), iotest.HalfReader(strings.NewReader(want))); err != nil {
				p.fail("write: %w", err)
			}
			r, err := s.OpenFile(p.ctx, p.path("a/file"))
			if err != nil {
				p.fail("open: %w", err)
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			if err != nil {
				p.fail("read: %w", err)
			}
			p.same("the file", got, want)
		}),
		stream("an empty stream makes an empty file", func(p *probe, s environment.Streamer) {
			if err := s.WriteFileFrom(p.ctx, p.path("file"), bytes.NewReader(nil)); err != nil {
				p.fail("write: %w", err)
			}
			p.holds(p.path("file"), "")
		}),
		stream("a reader that fails leaves the file as it was", func(p *probe, s environment.Streamer) {
			p.write(p.path("file"), "old")
			broken := errors.New("the reader broke")
			parts := io.MultiReader(strings.NewReader(content(300<<10)), iotest.ErrReader(broken))
			if err := s.WriteFileFrom(p.ctx, p.path("file"), parts); !errors.Is(err, broken) {
				p.fail("got %v, want the reader's error", err)
			}
			p.holds(p.path("file"), "old")
			p.eventually("no other file is left", func() bool { return len(p.list(p.dir)) == 1 })
		}),
		stream("a reader can be closed early", func(p *probe, s environment.Streamer) {
			p.write(p.path("file"), content(1<<20))
			r, err := s.OpenFile(p.ctx, p.path("file"))
			if err != nil {
				p.fail("open: %w", err)
			}
			if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
				p.fail("read: %w", err)
			}
			if err := r.Close(); err != nil {
				p.fail("close: %w", err)
			}
			p.holds(p.path("file"), content(1<<20))
		}),
	}...)
}

func streamsRefused() []Behaviour {
	return []Behaviour{
		stream("a stream of a missing file is not found", func(p *probe, s environment.Streamer) {
			r, err := s.OpenFile(p.ctx, p.path("none"))
			if err == nil {
				_, err = io.ReadAll(r)
				r.Close()
			}
			p.refused(err, environment.ErrNotFound)
		}),
		stream("a stream to a directory is refused", func(p *probe, s environment.Streamer) {
			p.write(p.path("d/file"), "")
			p.refused(s.WriteFileFrom(p.ctx, p.path("d"), strings.NewReader("x")), environment.ErrIsDirectory)
		}),
	}
}

func ports() []Behaviour {
	dial := func(name string, check func(p *probe, d environment.Dialer)) Behaviour {
		return row(name, func(p *probe) { check(p, p.env.(environment.Dialer)) }, environment.Ports)
	}
	return []Behaviour{
		dial("a port out of range is refused", func(p *probe, d environment.Dialer) {
			for _, port := range []int{-1, 0, 65536} {
				_, err := d.DialPort(p.ctx, port)
				p.names(err, "port")
			}
		}),
		dial("a port where nothing listens is unavailable", func(p *probe, d environment.Dialer) {
			const closed = 1 // reserved, and used nowhere
			_, err := d.DialPort(p.ctx, closed)
			p.refused(err, environment.ErrUnavailable)
		}),
		dial("a server in the environment answers", func(p *probe, d environment.Dialer) {
			p.has("busybox")
			port := 20000 + time.Now().Nanosecond()/1000%10000
			p.run(fmt.Sprintf("busybox nc -l -p %d -e echo served >/dev/null 2>&1 &", port), plain)
			var answer []byte
			p.eventually("the server answers", func() bool {
				conn, err := d.DialPort(p.ctx, port)
				if err != nil {
					return false
				}
				defer conn.Close()
				answer, _ = io.ReadAll(conn)
				return len(answer) > 0
			})
			p.same("the answer", answer, "served\n")
		}),
	}
}
