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
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// Tree is a directory or a file of the caller's machine that is to be copied into a sandbox.
type Tree struct {
	Source string
	// Target is where it goes in the sandbox, absolute. Of a directory, what is in it goes into
	// Target; a file becomes the file Target, or, where Target ends with a slash, goes into that
	// directory. What is missing on the way is made.
	Target string
	// Exclude leaves things out, with what is in them. The patterns are those of a .gitignore: see
	// [CheckExclude].
	Exclude []string
	// Owner is the uid, or uid:gid, that everything belongs to in the sandbox; default: the ids that
	// it belongs to here.
	Owner string
	// Service is the service whose container it is for; default: the sandbox's own.
	Service string
	// Progress is called from time to time while the tree is uploaded, from the goroutine of the
	// call, with the bytes that were sent and that there are. It is not called for a tree that is
	// stored already.
	Progress func(sent, total int64)
}

// CopyTree is [Client.Upload] of a source to a target, leaving out what the patterns say.
func (c *Client) CopyTree(ctx context.Context, source, target string, exclude ...string) (protocol.Copy, error) {
	return c.Upload(ctx, Tree{Source: source, Target: target, Exclude: exclude})
}

// Upload uploads a tree, so that it can be given to a sandbox in SandboxSpec.Copies.
//
// The tree is read in a fixed order; the same content gives the same digest, and is uploaded once.
// It is read twice where it has to be uploaded: for its digest, and to send it. Neither memory nor
// disk is used in proportion to it. Numeric owners, modes and modification times (to the second)
// are kept. Symbolic links are kept where they lead to something below the source; a file with
// several names becomes several files. Nothing outside of the source is read, whoever exchanges
// what meanwhile: each directory is opened below the one before, and compared with what was seen.
//
// Errors name the path: invalid_argument for a link that leads out, a device, a socket or a pipe,
// for what is too large, too deep or too many, and for a target that is not absolute; not_found;
// permission_denied; failed_precondition for what changes while it is read. What was uploaded is
// kept for 24 hours unless the operator says otherwise, which is the time to create the sandbox in.
func (c *Client) Upload(ctx context.Context, t Tree) (protocol.Copy, error) {
	copied := protocol.Copy{Target: path.Clean(t.Target), Owner: t.Owner, Service: t.Service}
	if !path.IsAbs(t.Target) {
		return copied, protocol.Invalid("target", "must be an absolute path, got %.80q", t.Target)
	}
	if _, _, ok := copied.Owners(); !ok {
		return copied, protocol.Invalid("owner", "must be a uid, or uid:gid, as numbers, got %.40q", t.Owner)
	}
	exclude, err := parseExclude(t.Exclude)
	if err != nil {
		return copied, err
	}
	info, err := os.Stat(t.Source)
	if err != nil {
		return copied, fileError(err)
	}
	copied.Target = path.Clean(placed(t.Source, info, t.Target))
	read := func(w io.Writer) (digest string, size int64, err error) {
		sum := sha256.New()
		counted := &counter{w: io.MultiWriter(w, sum)}
		a := &archive{ctx: ctx, tar: tar.NewWriter(counted), source: t.Source, exclude: exclude}
		err = a.write()
		return "sha256-" + hex.EncodeToString(sum.Sum(nil)), counted.n, err
	}
	digest, size, err := read(io.Discard)
	if err != nil {
		return copied, failed(ctx, err, "read "+t.Source)
	}
	copied.Digest, copied.Size = digest, protocol.Bytes(size)
	there, err := c.conn.FreshBlob(ctx, digest)
	if err == nil && !there {
		err = tryUpload(ctx, func() error { return c.send(ctx, t, digest, size, read) })
	}
	return copied, failed(ctx, err, "upload "+t.Source)
}

// placed is where in a sandbox a source goes: below a target that ends with a slash, where the source
// is a file.
func placed(source string, info fs.FileInfo, target string) string {
	if !info.IsDir() && strings.HasSuffix(target, "/") {
		return path.Join(target, filepath.Base(source))
	}
	return target
}

// PlaceCopies gives each copy of a document that is still to be uploaded the target that it has once
// it is: see [Tree.Target]. It belongs before [spec.Document.Validate], which reads no file, and for
// which two files that go into one directory would have the same target. A copy whose source cannot be
// looked at stays as it is; [Client.Upload] says why.
func PlaceCopies(d *spec.Document) {
	for _, l := range d.Copies {
		if info, err := os.Stat(l.Source); err == nil {
			entry := &d.Spec.Copies[l.Index]
			entry.Target = placed(l.Source, info, entry.Target)
		}
	}
}

// uploadTries is how often an upload is begun. A change of the store's leader breaks one off.
const uploadTries = 3

func tryUpload(ctx context.Context, upload func() error) (err error) {
	for range uploadTries {
		err = upload()
		if code := protocol.CodeOf(err); ctx.Err() != nil || code != protocol.Unavailable && code != protocol.DeadlineExceeded {
			break
		}
	}
	return err
}

// send reads the tree again, into the store. What has changed since its digest was taken is not
// stored.
func (c *Client) send(ctx context.Context, t Tree, digest string, size int64, read func(io.Writer) (string, int64, error)) error {
	r, w := io.Pipe()
	readErr := make(chan error, 1)
	go func() {
		again, _, err := read(w)
		if err == nil && again != digest {
			err = protocol.Errorf(protocol.FailedPrecondition, "", "%s changed while it was read", t.Source)
		}
		readErr <- err
		w.CloseWithError(err) // nil: the end
	}()
	var from io.Reader = r
	if t.Progress != nil {
		from = &watched{r: r, total: size, tell: t.Progress}
	}
	putErr := c.conn.PutBlob(ctx, digest, from)
	r.CloseWithError(putErr)
	if err := <-readErr; err != nil && !errors.Is(err, io.ErrClosedPipe) && (putErr == nil || !errors.Is(err, putErr)) {
		return err
	}
	return putErr
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// watched tells how much was read.
type watched struct {
	r           io.Reader
	done, total int64
	tell        func(sent, total int64)
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.done += int64(n)
	w.tell(w.done, w.total)
	return n, err
}

// archive writes a tree as a tar stream.
type archive struct {
	ctx     context.Context
	tar     *tar.Writer
	source  string
	exclude exclusion

	entries int
	bytes   int64
}

// write writes the whole stream. The first entry, ".", is the tree itself: a directory, or the only
// file of it.
func (a *archive) write() error {
	info, err := os.Stat(a.source)
	if err != nil {
		return fileError(err)
	}
	if info.IsDir() {
		err = a.tree(info)
	} else {
		err = a.single(info)
	}
	if err != nil {
		return err
	}
	return fileError(a.tar.Close())
}

func (a *archive) tree(info fs.FileInfo) error {
	root, err := os.OpenRoot(a.source)
	if err != nil {
		return fileError(err)
	}
	defer root.Close()
	if err := a.header(".", "", info); err != nil {
		return err
	}
	return a.dir(root, "", info)
}

// single writes a tree that is one file.
func (a *archive) single(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return protocol.Invalid("source", "%s is neither a file nor a directory", a.source)
	}
	f, err := os.OpenFile(a.source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fileError(err)
	}
	return a.file(f, ".", info)
}

// dir adds what is in a directory, in the order of the names. root is the directory itself, opened
// below its parent, and must be what info describes: it may have been exchanged for another.
func (a *archive) dir(root *os.Root, name string, info fs.FileInfo) error {
	d, err := root.Open(".")
	if err != nil {
		return fileError(err)
	}
	now, err := d.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = a.changed(name)
	}
	var names []string
	if err == nil {
		names, err = d.Readdirnames(-1)
	}
	d.Close()
	if err != nil {
		return fileError(err)
	}
	slices.Sort(names)
	for _, base := range names {
		if err := a.visit(root, base, path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

// visit adds one entry of a directory.
func (a *archive) visit(root *os.Root, base, name string) error {
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	info, err := root.Lstat(base)
	if err != nil {
		return fileError(err)
	}
	if a.exclude.matches(name, info.IsDir()) {
		return nil
	}
	if why := protocol.TreePathError(name); why != "" {
		return protocol.Invalid("source", "%.300s %s", a.path(name), why)
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		f, err := root.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that was put there must not hold us up
		if err != nil {
			return fileError(err)
		}
		return a.file(f, name, info)
	case mode.IsDir():
		below, err := root.OpenRoot(base)
		if err != nil {
			return fileError(err)
		}
		defer below.Close()
		if err := a.header(name, "", info); err != nil {
			return err
		}
		return a.dir(below, name, info)
	case mode.Type() == fs.ModeSymlink:
		to, err := root.Readlink(base)
		if err != nil {
			return fileError(err)
		}
		if to = filepath.ToSlash(to); !protocol.TreeLinkStays(name, to) {
			return protocol.Invalid("source", "%s leads out of %s: %s", a.path(name), a.source, to)
		}
		return a.header(name, to, info)
	}
	return protocol.Invalid("source", "%s is neither a file, a directory nor a link", a.path(name))
}

// path is an entry's path on the caller's machine, for errors.
func (a *archive) path(name string) string { return filepath.Join(a.source, filepath.FromSlash(name)) }

func (a *archive) changed(name string) error {
	return protocol.Errorf(protocol.FailedPrecondition, "", "%s changed while it was read", a.path(name))
}

// file adds a file, which must be what info describes, and closes it.
func (a *archive) file(f *os.File, name string, info fs.FileInfo) error {
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return fileError(err)
	}
	if !os.SameFile(info, now) || !now.Mode().IsRegular() {
		return a.changed(name)
	}
	if err := a.header(name, "", now); err != nil {
		return err
	}
	n, err := io.Copy(a.tar, &cancellable{a.ctx, f})
	switch {
	case errors.Is(err, tar.ErrWriteTooLong), err == nil && n != now.Size():
		return a.changed(name)
	case a.ctx.Err() != nil:
		return a.ctx.Err()
	}
	return fileError(err)
}

func (a *archive) header(name, link string, info fs.FileInfo) error {
	uid, gid := owner(info)
	h := &tar.Header{Name: name, Uid: uid, Gid: gid, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(1e9), Typeflag: tar.TypeReg}
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			h.Mode |= unix
		}
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, link, 0o777
	default:
		h.Size = info.Size()
	}
	a.entries++
	if a.bytes += h.Size; a.entries > protocol.MaxTreeEntries || a.bytes > int64(protocol.MaxTreeBytes) {
		return protocol.Invalid("source", "%s has more than %d entries or %s", a.source, protocol.MaxTreeEntries, protocol.MaxTreeBytes)
	}
	return fileError(a.tar.WriteHeader(h))
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
