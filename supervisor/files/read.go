package files

import (
	"context"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// path returns the absolute path of a path in a request.
func (h *helper) path(field, path string) (string, error) {
	if err := protocol.ValidateFilePath(field, path); err != nil {
		return "", err
	}
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	return strings.TrimSuffix(h.cwd, "/") + "/" + path, nil
}

// stat describes paths.
func (h *helper) stat(ctx context.Context, r *protocol.FileStat) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	known := readNames()
	stats := &protocol.FileStats{}
	size := 0
	for _, path := range r.Paths {
		info, err := h.statOne(known, path, r.Follow)
		if err == nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		if size += len(path) + len(info.Target) + infoSize; err == nil && size > protocol.MaxFileResult {
			err = tooLarge("the answer is too large; ask about fewer paths")
		}
		result := protocol.FileResult{Error: protocol.AsError(failure(path, err))}
		if err == nil {
			result.File = &info
		}
		stats.Files = append(stats.Files, result)
	}
	return &control.FileReply{Stats: stats}, nil
}

// infoSize is more than the encoded size of a FileInfo without its path and target, in bytes.
const infoSize = 320

func (h *helper) statOne(known *names, asked string, follow bool) (protocol.FileInfo, error) {
	path, err := h.path("paths", asked)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	stat, err := lstat(path)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	if typeOf(stat.Mode) != protocol.FileLink {
		return known.info(asked, &stat), nil
	}
	target := readLink(unix.AT_FDCWD, path)
	gone := false
	if follow {
		var led unix.Stat_t
		switch err := unix.Stat(path, &led); err {
		case nil:
			stat = led
		case unix.ENOENT:
			gone = true
		default:
			return protocol.FileInfo{}, err
		}
	}
	info := known.info(asked, &stat)
	info.Target, info.LinkGone = target, gone
	return info, nil
}

// read opens a file. If the worker can read the file by itself, it gets the descriptor, and otherwise the bytes.
func (h *helper) read(ctx context.Context, r *protocol.FileRead) error {
	path, err := h.path("path", r.Path)
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return h.answer(nil, err)
	}
	file, stat, err := openRegular(path)
	if err != nil {
		return h.answer(nil, err)
	}
	defer file.Close()
	info := readNames().info(r.Path, &stat)
	reply := &control.FileReply{File: &info}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &system); err == nil && control.ReadableThere(int64(system.Type)) {
		return h.link.SendMessage(reply, int(file.Fd()))
	}
	reply.Stream = true
	if err := h.answer(reply, nil); err != nil {
		return err
	}
	length := r.Length
	if length == 0 {
		length = 1<<63 - 1 - r.Offset
	}
	out := newOutput(h.link)
	err = h.copyBytes(ctx, out, io.NewSectionReader(file, r.Offset, length))
	if broken := out.flush(); broken != nil {
		return broken
	}
	return h.answer(&control.FileReply{}, failure(r.Path, err))
}

// copyBuffer is the size of a copy between two system calls, in bytes.
const copyBuffer = 64 << 10

// copyBytes copies until the end of r, or until ctx ends.
func (h *helper) copyBytes(ctx context.Context, w io.Writer, r io.Reader) error {
	for ctx.Err() == nil {
		n, err := r.Read(h.buf)
		if n > 0 {
			if _, err := w.Write(h.buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
