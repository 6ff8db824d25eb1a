package sdk

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// CopyTree uploads a directory or a file of the caller's machine, so that it can be given to a
// sandbox in SandboxSpec.Copies. Of a directory, what is in it goes into target; a file becomes the
// file target, or, where target ends with a slash, goes into that directory. exclude are paths
// below source that are left out, with what is in them.
//
// The tree is read once, in a fixed order, into a temporary file; the same content gives the same
// digest, and is uploaded once. Modes and modification times (to the second) are kept, owners are
// not: files belong to root. Symbolic links are kept where they lead to something below source.
// Memory does not grow with the tree.
//
// Errors name the path: invalid_argument for a link that leads out, a device, a socket or a pipe,
// and for a target that is not absolute; not_found; permission_denied; failed_precondition for
// a file that changes while it is read. What was uploaded is kept for 24 hours unless the operator
// says otherwise, which is the time to create the sandbox in.
func (c *Client) CopyTree(ctx context.Context, source, target string, exclude ...string) (protocol.Copy, error) {
	if !path.IsAbs(target) {
		return protocol.Copy{}, protocol.Invalid("target", "must be an absolute path, got %.80q", target)
	}
	spool, err := os.CreateTemp("", "boxfleet-copy-")
	if err != nil {
		return protocol.Copy{}, fileError(err)
	}
	defer os.Remove(spool.Name())
	defer spool.Close()
	sum := sha256.New()
	a := &archive{ctx: ctx, tar: tar.NewWriter(io.MultiWriter(spool, sum)), root: source, exclude: exclude}
	dir, err := a.write(target)
	if err != nil {
		return protocol.Copy{}, failed(ctx, err, "read "+source)
	}
	size, err := spool.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		return protocol.Copy{}, fileError(err)
	}
	copied := protocol.Copy{Digest: "sha256-" + hex.EncodeToString(sum.Sum(nil)), Size: protocol.Bytes(size), Target: dir}
	there, err := c.conn.HasBlob(ctx, copied.Digest)
	if err == nil && !there {
		err = c.conn.PutBlob(ctx, copied.Digest, spool)
	}
	return copied, failed(ctx, err, "upload "+source)
}

// archive writes a tree as a tar stream.
type archive struct {
	ctx     context.Context
	tar     *tar.Writer
	root    string
	exclude []string
}

// write writes the whole stream, and returns the directory that it belongs into.
func (a *archive) write(target string) (dir string, err error) {
	info, err := os.Stat(a.root)
	if err != nil {
		return "", fileError(err)
	}
	dir = path.Clean(target)
	switch {
	case info.IsDir():
		err = filepath.WalkDir(a.root, a.visit)
	case !strings.HasSuffix(target, "/"):
		dir = path.Dir(dir)
		err = a.add(a.root, path.Base(target), info)
	default:
		err = a.add(a.root, filepath.Base(a.root), info)
	}
	if err != nil {
		return "", err
	}
	return dir, fileError(a.tar.Close())
}

// visit adds one entry. WalkDir goes through each directory in lexical order.
func (a *archive) visit(p string, entry fs.DirEntry, err error) error {
	if err != nil {
		return fileError(err)
	}
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	name, err := filepath.Rel(a.root, p)
	if err != nil {
		return fileError(err)
	}
	if name == "." {
		return nil
	}
	if slices.Contains(a.exclude, filepath.ToSlash(name)) {
		if entry.IsDir() {
			return filepath.SkipDir
		}
		return nil
	}
	info, err := entry.Info()
	if err != nil {
		return fileError(err)
	}
	return a.add(p, filepath.ToSlash(name), info)
}

func (a *archive) add(p, name string, info fs.FileInfo) error {
	link := ""
	switch mode := info.Mode(); {
	case mode.IsRegular(), mode.IsDir():
	case mode.Type() == fs.ModeSymlink:
		var err error
		if link, err = a.link(p); err != nil {
			return err
		}
	default:
		return protocol.Invalid("source", "%s is neither a file, a directory nor a link", p)
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(1e9), Typeflag: tar.TypeReg, Size: info.Size()}
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			h.Mode |= unix
		}
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name, h.Size = tar.TypeDir, name+"/", 0
	case link != "":
		h.Typeflag, h.Linkname, h.Size, h.Mode = tar.TypeSymlink, link, 0, 0o777
	}
	if err := a.tar.WriteHeader(h); err != nil {
		return fileError(err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return a.content(p, info.Size())
}

// link reads a symbolic link that must lead to something below the root.
func (a *archive) link(p string) (string, error) {
	to, err := os.Readlink(p)
	if err != nil {
		return "", fileError(err)
	}
	out := protocol.Invalid("source", "%s leads out of %s: %s", p, a.root, to)
	if filepath.IsAbs(to) {
		return "", out
	}
	rel, err := filepath.Rel(a.root, filepath.Join(filepath.Dir(p), to))
	if err != nil || !filepath.IsLocal(rel) {
		return "", out
	}
	return filepath.ToSlash(to), nil
}

func (a *archive) content(p string, size int64) error {
	f, err := os.Open(p)
	if err != nil {
		return fileError(err)
	}
	defer f.Close()
	n, err := io.Copy(a.tar, &cancellable{a.ctx, f})
	switch {
	case errors.Is(err, tar.ErrWriteTooLong), err == nil && n != size:
		return protocol.Errorf(protocol.FailedPrecondition, "", "%s changed while it was read", p)
	case a.ctx.Err() != nil:
		return a.ctx.Err()
	}
	return fileError(err)
}

// cancellable ends reading with its context.
type cancellable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancellable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// fileError types an error of the caller's file system.
func fileError(err error) error {
	var typed *protocol.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	code := protocol.Internal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = protocol.NotFound
	case errors.Is(err, fs.ErrPermission):
		code = protocol.PermissionDenied
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &failure{protocol.Errorf(code, "", "%v", err), err}
}
