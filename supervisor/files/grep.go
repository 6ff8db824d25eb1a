package files

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	binaryHead = 8 << 10 // bytes at the beginning of a file in which a NUL byte makes it binary
	// longestLine limits the memory for a line. The parts of a longer line are searched one by one, as if they were lines.
	longestLine = 1 << 20
	matchSize   = 48 // more than the encoded size of a match without its path and text, in bytes
)

// search is one grep.
type search struct {
	ctx        context.Context
	expression *regexp.Regexp
	limit      int
	lineBytes  int
	left       int64 // bytes that may still be read
	size       int   // encoded size of the result
	reader     *bufio.Reader
	out        protocol.FileMatches
	skips      skips
}

// grep finds lines.
func (h *helper) grep(ctx context.Context, r *protocol.FileGrep) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := checkPatterns("include", r.Include...); err != nil {
		return nil, err
	}
	if err := checkPatterns("excludes", r.Excludes...); err != nil {
		return nil, err
	}
	expression, err := r.Compile()
	if err != nil {
		return nil, err
	}
	path, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	s := &search{ctx: ctx, expression: expression, limit: cmp.Or(r.Limit, protocol.DefaultFileMatches),
		lineBytes: cmp.Or(r.LineBytes, protocol.DefaultFileLine), reader: bufio.NewReaderSize(nil, copyBuffer),
		left: int64(cmp.Or(r.MaxBytes, protocol.DefaultFileGrepBytes))}
	s.out.Matches = []protocol.FileMatch{}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, failure(r.Path, err)
	}
	if kind := typeOf(stat.Mode); kind == protocol.FileDirectory {
		w := walk{ctx: ctx, hidden: r.Hidden, depth: -1, excludes: r.Excludes, skipped: s.skips.add}
		w.visit = func(e *entry) error {
			if typeOf(e.stat.Mode) != protocol.FileRegular || len(r.Include) > 0 && !matches(r.Include, e.rel) {
				return nil
			}
			return s.file(e.dir, e.name, e.rel, unix.O_NOFOLLOW)
		}
		err = w.below(path)
	} else if kind != protocol.FileRegular {
		return nil, notRegular(r.Path, kind)
	} else if err = s.file(unix.AT_FDCWD, path, "", 0); errors.Is(err, errStop) {
		err = nil
	}
	if err != nil {
		return nil, failure(r.Path, err)
	}
	s.out.Skipped, s.out.Skips = s.skips.kept, s.skips.count
	return &control.FileReply{Matches: &s.out}, nil
}

// file searches one file.
func (s *search) file(dir int, name, rel string, flags int) error {
	file, _, err := openChecked(dir, name, rel, unix.O_RDONLY|flags)
	if err != nil {
		s.skips.add(rel, err)
		return nil
	}
	defer file.Close()
	s.reader.Reset(&counted{s: s, r: file})
	head, err := s.reader.Peek(binaryHead)
	if err != nil && !errors.Is(err, io.EOF) {
		return s.unreadable(rel, err)
	}
	s.out.Files++
	if bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	var line []byte
	for number := int64(1); ; {
		part, err := s.reader.ReadSlice('\n')
		whole := part
		if len(line) > 0 || errors.Is(err, bufio.ErrBufferFull) {
			line = append(line, part...)
			whole = line
		}
		if errors.Is(err, bufio.ErrBufferFull) && len(line) < longestLine {
			continue
		}
		if len(whole) > 0 {
			if err := s.line(rel, number, bytes.TrimRight(whole, "\r\n")); err != nil {
				return err
			}
		}
		line = line[:0]
		switch {
		case err == nil:
			number++
		case errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return s.unreadable(rel, err)
		}
	}
}

// unreadable handles an error of reading: a limit or the context ends the search, another error skips the file.
func (s *search) unreadable(rel string, err error) error {
	if errors.Is(err, errStop) || s.ctx.Err() != nil {
		return cmp.Or(s.ctx.Err(), errStop)
	}
	s.skips.add(rel, errnoOf(err))
	return nil
}

// counted counts the bytes that are read, and ends the search at the limit.
type counted struct {
	s *search
	r io.Reader
}

func (c *counted) Read(p []byte) (int, error) {
	if c.s.ctx.Err() != nil {
		return 0, c.s.ctx.Err()
	}
	if c.s.left <= 0 {
		c.s.out.Stopped = "max_bytes"
		return 0, errStop
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.s.left)])
	c.s.left -= int64(max(n, 0))
	c.s.out.Bytes += int64(max(n, 0))
	return n, err
}

// line searches one line.
func (s *search) line(rel string, number int64, line []byte) error {
	found := s.expression.FindIndex(line)
	if found == nil {
		return nil
	}
	match := protocol.FileMatch{Path: rel, Line: number, Column: found[0] + 1}
	begin := 0
	if len(line) > s.lineBytes {
		match.Cut = true
		if found[1] > s.lineBytes { // show a little of the text before the match
			begin = max(0, min(found[0]-s.lineBytes/4, len(line)-s.lineBytes))
		}
	}
	match.Offset = int64(begin)
	match.Text = bytes.Clone(line[begin:min(len(line), begin+s.lineBytes)])
	size := matchSize + len(rel) + len(match.Text)
	if len(s.out.Matches) >= s.limit || s.size+size > protocol.MaxFileResult-skipBytes {
		s.out.Stopped = "limit"
		return errStop
	}
	s.size += size
	s.out.Matches = append(s.out.Matches, match)
	return nil
}
