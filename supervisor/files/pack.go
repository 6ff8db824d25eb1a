package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// maxHardLinks limits how many files with several names a tar stream may name as links. Further ones are written again
// for each of their names.
const maxHardLinks = 50_000

// packing is the state of a tar stream that is being written.
type packing struct {
	ctx    context.Context
	known  *names
	tar    *tar.Writer
	buf    []byte
	linked map[[2]uint64]string // the first name of each file with several names, by device and inode
	count  protocol.FileCount
	skips  skips
}

// pack sends a tree as a tar stream.
func (h *helper) pack(ctx context.Context, r *protocol.FilePack) (*control.FileReply, error) {
	if err := checkPatterns("excludes", r.Excludes...); err != nil {
		return nil, err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Stat(at, &stat); err != nil {
		return nil, failure(r.Path, err)
	}
	out := newOutput(h.link)
	p := &packing{ctx: ctx, known: readNames(), tar: tar.NewWriter(out), buf: h.buf,
		linked: map[[2]uint64]string{}}
	switch kind := typeOf(stat.Mode); kind {
	case protocol.FileDirectory:
		err = p.tree(at, &stat, r.Excludes)
	case protocol.FileRegular:
		err = p.content(unix.AT_FDCWD, at, path.Base(strings.TrimRight(at, "/")), 0)
		if p.skips.count > 0 {
			err = p.skips.kept[0].Error
		}
	default:
		err = notRegular(r.Path, kind)
	}
	if err == nil {
		err = errors.Join(p.tar.Close(), out.flush())
	}
	if err != nil {
		return nil, failure(r.Path, err)
	}
	p.count.Skipped, p.count.Skips = p.skips.kept, p.skips.count
	return &control.FileReply{Count: &p.count}, nil
}

// tree writes a directory as the entry "./", and what is below it.
func (p *packing) tree(at string, stat *unix.Stat_t, excludes []string) error {
	fd, err := openAt(unix.AT_FDCWD, at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := p.header("./", stat, ""); err != nil {
		unix.Close(fd)
		return err
	}
	w := walk{ctx: p.ctx, hidden: true, depth: -1, excludes: excludes, skipped: p.skips.add, visit: p.entry}
	return w.belowOpen(fd, at)
}

func (p *packing) entry(e *entry) error {
	switch kind := typeOf(e.stat.Mode); kind {
	case protocol.FileDirectory:
		return p.header(e.rel+"/", &e.stat, "")
	case protocol.FileLink:
		return p.header(e.rel, &e.stat, readLink(e.dir, e.name))
	case protocol.FileRegular:
		return p.content(e.dir, e.name, e.rel, unix.O_NOFOLLOW)
	default:
		p.skips.add(e.rel, notRegular(e.rel, kind))
		return nil
	}
}

// header writes the header of an entry.
func (p *packing) header(name string, stat *unix.Stat_t, link string) error {
	h := &tar.Header{
		Name: name, Linkname: link, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		Uname: p.known.users[stat.Uid], Gname: p.known.groups[stat.Gid], ModTime: timeOf(stat.Mtim),
		Typeflag: tar.TypeDir, Format: tar.FormatPAX,
	}
	switch typeOf(stat.Mode) {
	case protocol.FileLink:
		h.Typeflag = tar.TypeSymlink
	case protocol.FileRegular:
		h.Typeflag, h.Size = tar.TypeReg, stat.Size
		if link != "" {
			h.Typeflag, h.Size = tar.TypeLink, 0
		}
	}
	p.count.Entries++
	return p.tar.WriteHeader(h)
}

// content writes a regular file. The header has the size, so a file that grows is cut there. A file that becomes
// shorter is filled with zeros, and named in the result.
func (p *packing) content(dir int, name, rel string, flags int) error {
	file, stat, err := openChecked(dir, name, rel, unix.O_RDONLY|flags)
	if err != nil {
		p.skips.add(rel, err)
		return nil
	}
	defer file.Close()
	key := [2]uint64{stat.Dev, stat.Ino}
	if first := p.linked[key]; first != "" {
		return p.header(rel, &stat, first)
	}
	if stat.Nlink > 1 && len(p.linked) < maxHardLinks {
		p.linked[key] = rel
	}
	if err := p.header(rel, &stat, ""); err != nil {
		return err
	}
	left := stat.Size
	for left > 0 {
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		n, err := file.Read(p.buf[:min(left, int64(len(p.buf)))])
		if _, err := p.tar.Write(p.buf[:max(n, 0)]); err != nil {
			return err
		}
		left -= int64(max(n, 0))
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFileChanged,
				"%.200q became shorter while it was read; its end is zeros", rel)
		}
		p.skips.add(rel, errnoOf(err))
		if err := p.zeros(left); err != nil {
			return err
		}
		break
	}
	p.count.Bytes += stat.Size
	return nil
}

func (p *packing) zeros(n int64) error {
	clear(p.buf)
	for n > 0 {
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		written, err := p.tar.Write(p.buf[:min(n, int64(len(p.buf)))])
		if err != nil {
			return err
		}
		n -= int64(written)
	}
	return nil
}
