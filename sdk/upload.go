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
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// Upload uploads a directory or file of this machine. It returns the entry for [SandboxSpec].Copies that places the
// upload at target, an absolute path in the sandbox. The content of a directory is placed in target. A file becomes the
// file target or, if target ends with a slash, is placed in that directory. Missing directories are created.
//
// The tree is read in a fixed order, so equal content has an equal digest and is uploaded once. Upload reads the tree
// once for its digest and, if the fleet lacks it, once more to send it. It needs neither memory nor disk in proportion
// to the size of the tree. Numeric owners, modes and modification times (to the second) are kept. Symbolic links are
// kept if they lead to something below source; a file with several hard links becomes several files. Nothing outside
// source is read, even if another process replaces directories in the meantime.
//
// The fleet keeps an upload for 24 hours unless the operator configured otherwise; create the sandbox within that time.
// If ctx ends first, an incomplete upload is discarded.
//
// Options: [WithExclude], [WithOwner], [WithService], [WithProgress]. Errors of invalid arguments name the field:
// invalid_argument for a target that is not absolute, an invalid owner, pattern or service name. Errors of the tree
// name the path: invalid_argument for a link that leads out, a device, a socket or a pipe, and for a tree that is too
// large; not_found; permission_denied; failed_precondition for a tree that changes while it is read.
func (c *Client) Upload(ctx context.Context, source, target string, opts ...UploadOption) (Copy, error) {
	o := settingsOf(opts, UploadOption.forUpload)
	copied := Copy{Target: path.Clean(target), Owner: o.owner, Service: o.service}
	if o.service != "" {
		named := ExecSpec{Command: []string{"true"}, Service: o.service}
		if err := named.Validate(); err != nil {
			return copied, protocol.Invalid("service", "is not the name of a service: %.80q", o.service)
		}
	}
	if !path.IsAbs(target) {
		return copied, protocol.Invalid("target", "must be an absolute path, got %.80q", target)
	}
	if _, _, ok := copied.Owners(); !ok {
		return copied, protocol.Invalid("owner", "must be a uid, or uid:gid, as numbers, got %.40q", o.owner)
	}
	exclude, info, err := o.localSource(source)
	if err != nil {
		return copied, err
	}
	copied.Target = path.Clean(placed(source, info, target))
	u := &upload{client: c, source: source, exclude: exclude, progress: o.progress}
	if u.digest, u.size, err = u.read(ctx, io.Discard); err != nil {
		return copied, failed(ctx, err, "read "+source)
	}
	copied.Digest, copied.Size = u.digest, Bytes(u.size)
	exists, err := c.reads.Uploaded(ctx, u.digest)
	if err == nil && !exists {
		err = retryUpload(ctx, func() error { return u.send(ctx) })
	}
	return copied, failed(ctx, err, "upload "+source)
}

// localSource checks the patterns that exclude, and describes the file or directory to upload.
func (s *settings) localSource(source string) (exclude exclusion, info fs.FileInfo, err error) {
	if exclude, err = parseExclude(s.exclude); err != nil {
		return nil, nil, err
	}
	if source == "" {
		return nil, nil, protocol.Invalid("source", "must not be empty")
	}
	if info, err = os.Stat(source); err != nil {
		return nil, nil, fileError(err)
	}
	return exclude, info, nil
}

// placed returns the path that a source gets in the sandbox: if target ends with a slash, a file goes into that
// directory.
func placed(source string, info fs.FileInfo, target string) string {
	if !info.IsDir() && strings.HasSuffix(target, "/") {
		return path.Join(target, filepath.Base(source))
	}
	return target
}

// PlaceCopies sets the final targets of a document's copies that are not uploaded yet, as [Client.Upload] will return
// them. Call it before [spec.Document.Validate], which reads no file. Without the final targets, Validate would
// conclude that two files copied into one directory have the same target. A copy whose source cannot be read stays
// unchanged; Upload reports the error.
func PlaceCopies(d *spec.Document) {
	for _, l := range d.Copies {
		if info, err := os.Stat(l.Source); err == nil {
			entry := &d.Spec.Copies[l.Index]
			entry.Target = placed(l.Source, info, entry.Target)
		}
	}
}

// uploadTries is how often an upload is tried. A change of the store's leader interrupts an upload.
const uploadTries = 3

func retryUpload(ctx context.Context, try func() error) (err error) {
	for range uploadTries {
		err = try()
		if ctx.Err() != nil || !isTransient(err) {
			break
		}
	}
	return err
}

// upload is the upload of one tree.
type upload struct {
	client   *Client
	source   string
	exclude  exclusion
	progress func(sent, total int64) // may be nil

	digest string
	size   int64
}

// read writes the tree as a tar stream, and returns the stream's digest and size.
func (u *upload) read(ctx context.Context, w io.Writer) (digest string, size int64, err error) {
	sum := sha256.New()
	counted := &countingWriter{w: io.MultiWriter(w, sum)}
	a := &archive{ctx: ctx, tar: tar.NewWriter(counted), source: u.source, exclude: u.exclude}
	err = a.write()
	return "sha256-" + hex.EncodeToString(sum.Sum(nil)), counted.n, err
}

// send reads the tree again and sends it to the store. The store discards the tree if it has changed since its digest
// was computed.
func (u *upload) send(ctx context.Context) error {
	r, w := io.Pipe()
	readErr := make(chan error, 1)
	go func() {
		again, _, err := u.read(ctx, w)
		if err == nil && again != u.digest {
			err = protocol.Errorf(protocol.FailedPrecondition, "", "%s changed while it was read", u.source)
		}
		readErr <- err
		w.CloseWithError(err) // nil: end of file
	}()
	var from io.Reader = r
	if u.progress != nil {
		from = &progressReader{r: r, total: u.size, report: u.progress}
	}
	putErr := u.client.reads.Upload(ctx, u.digest, from)
	r.CloseWithError(putErr)
	if err := <-readErr; err != nil && !errors.Is(err, io.ErrClosedPipe) && (putErr == nil || !errors.Is(err, putErr)) {
		return err
	}
	return putErr
}

// countingWriter counts the bytes written.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// progressReader reports how much was read.
type progressReader struct {
	r           io.Reader
	done, total int64
	report      func(sent, total int64)
}

func (w *progressReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.done += int64(n)
	w.report(w.done, w.total)
	return n, err
}

// contextReader fails once its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// fileError returns an *Error for an error of this machine's file system.
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
	return &typedError{protocol.Errorf(code, "", "%v", err), err}
}
