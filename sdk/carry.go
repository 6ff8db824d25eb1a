package sdk

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
)

// Upload carries a file or a directory of this machine into the container. The content of a directory is placed in the
// directory target, which is created if it is missing. A file becomes the file target or, if target ends with a slash,
// is placed in that directory. Upload keeps modes, and the modification times of directories. Files belong to the user
// of the operation, unless [WithOwner] is given.
//
// A single file appears only when it is complete. Without [WithOverwrite], a file that exists is refused. If the upload
// of a tree is interrupted, the files that have already arrived stay, each of them complete. Nothing outside source is
// read, even if another process replaces directories in the meantime.
//
// Options: [WithExclude], [WithOwner], [WithOverwrite], [WithCompression], [WithProgress]. Errors of the tree are those
// of [Client.Upload], except that links may lead anywhere.
func (f *Files) Upload(ctx context.Context, source, target string, opts ...UploadTreeOption) (*FileCount, error) {
	s := settingsOf(opts, UploadTreeOption.forUploadTree)
	exclude, info, err := s.localSource(source)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return f.uploadFile(ctx, source, placed(source, info, target), s)
	}
	r, w := io.Pipe()
	read := make(chan error, 1)
	go func() {
		buffered := bufio.NewWriterSize(w, copyBuffer)
		a := &archive{ctx: ctx, tar: tar.NewWriter(buffered), source: source, exclude: exclude, anyLink: true}
		err := a.write()
		if err == nil {
			err = buffered.Flush()
		}
		w.CloseWithError(err) // nil: end of file
		read <- err
	}()
	count, err := f.unpack(ctx, target, r, s)
	r.CloseWithError(errCarried)
	if readErr := <-read; readErr != nil && !errors.Is(readErr, errCarried) && err != nil {
		return nil, failed(ctx, readErr, "read "+source)
	}
	return count, err
}

// errCarried ends the reading of a tree when the upload has ended.
var errCarried = errors.New("the upload has ended")

// sent returns a function that reports how much was sent, or nil if the caller did not ask for the progress. total is
// -1 if it is not known.
func (s *settings) sent(total int64) func(done int64) {
	if s.progress == nil {
		return nil
	}
	return func(done int64) { s.progress(done, total) }
}

func (f *Files) uploadFile(ctx context.Context, source, target string, s *settings) (*FileCount, error) {
	file, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, fileError(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fileError(err)
	}
	if !info.Mode().IsRegular() {
		return nil, protocol.Invalid("source", "%s is neither a file nor a directory", source)
	}
	how := protocol.FileCreate
	if s.files.overwrite {
		how = protocol.FileReplace
	}
	mode := unixMode(info.Mode())
	written, err := f.write(ctx, protocol.FileRequest{Write: &protocol.FileWrite{
		Path: target, How: how, Mode: &mode, Owner: s.owner}}, file, s.sent(info.Size()))
	if err != nil {
		return nil, err
	}
	return &FileCount{Entries: 1, Bytes: written.Size}, nil
}

// Download carries a file or a directory of the container to this machine. The content of a directory is placed in the
// directory target, which is created if it is missing. A file becomes the file target or, if target ends with a slash,
// is placed in that directory. Files that exist are replaced. Modes and modification times are kept, except that the
// bits setuid, setgid and sticky are left out. Files belong to the caller.
//
// The sandbox is not trusted: nothing is written outside of target, whatever it sends. Devices, sockets, FIFOs, files
// that cannot be read, and links that lead out of the tree are left out, and the result names them. Each file appears
// only when it is complete. If the download of a tree is interrupted, the files that have already arrived stay.
//
// Options: [WithExclude], [WithKeptLinks], [WithMaxBytes], [WithCompression], [WithProgress]. Without WithMaxBytes, a
// sandbox that sends without end fills this machine's disk, until ctx ends. Errors, in addition to those of [Files]:
// permission_denied with reason path_denied if the sandbox sends an entry that would leave target; the errors of this
// machine's files.
func (f *Files) Download(ctx context.Context, source, target string, opts ...DownloadOption) (*FileCount, error) {
	s := settingsOf(opts, DownloadOption.forDownload)
	exclude, err := parseExclude(s.exclude)
	if err == nil {
		err = s.checkMaxBytes()
	}
	if err != nil {
		return nil, err
	}
	if target == "" {
		return nil, protocol.Invalid("target", "must not be empty")
	}
	info, err := f.Stat(ctx, source, WithFollowedLinks())
	if err != nil {
		return nil, err
	}
	if info.Type != protocol.FileDirectory {
		if strings.HasSuffix(target, "/") {
			target += path.Base(path.Clean("/" + source))
		}
		return f.downloadFile(ctx, source, target, s)
	}
	_, err = os.Stat(target)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(target, 0o777); err != nil { // the caller's umask applies, as with mkdir
		return nil, fileError(err)
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return nil, fileError(err)
	}
	defer root.Close()
	x := &extraction{ctx: ctx, root: root, exclude: exclude, keepLinks: s.files.keepLink, progress: s.progress}
	if isNew {
		x.made = []madeDir{{".", unixPerm(info.Mode), info.Modified}}
	}
	return f.extract(ctx, source, x, sentGlobs(exclude), s)
}

// sentGlobs returns the patterns that the worker can apply, so that it does not send the files that they match. The
// extraction applies all patterns again.
func sentGlobs(patterns exclusion) (globs []string) {
	for _, p := range patterns {
		if p.include {
			return nil // it may include files again that another pattern leaves out
		}
		if !p.dirs {
			globs = append(globs, path.Join(p.glob...))
		}
	}
	return globs
}

func (f *Files) extract(ctx context.Context, source string, x *extraction, globs []string, s *settings) (
	*FileCount, error) {
	r, w := io.Pipe()
	extracted := make(chan error, 1)
	go func() {
		err := x.run(r)
		if err == nil {
			_, err = io.Copy(io.Discard, r) // bytes after the end of the tar stream
		}
		r.CloseWithError(err)
		extracted <- err
	}()
	// With "/." at the end, the path of a link to a directory means the directory.
	count, err := f.pack(ctx, strings.TrimSuffix(source, "/")+"/.", w, globs, s)
	w.CloseWithError(err) // nil: end of file
	if own := <-extracted; own != nil && (err == nil || errors.Is(err, own)) {
		return nil, failed(ctx, own, "unpack "+source)
	}
	if err != nil {
		return nil, err
	}
	x.count.Skips += count.Skips
	x.count.Skipped = append(x.count.Skipped, count.Skipped...)
	return &x.count, nil
}

func (f *Files) downloadFile(ctx context.Context, source, target string, s *settings) (*FileCount, error) {
	r, err := f.read(ctx, source, s)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := mayBecomeFile(target); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Dir(target))
	if err != nil {
		return nil, fileError(err)
	}
	defer root.Close()
	counted := &progressReader{r: r, total: r.Info.Size, report: s.progress}
	if s.progress == nil {
		counted.report = func(int64, int64) {}
	}
	if err := replaceFile(root, filepath.Base(target), counted, unixPerm(r.Info.Mode), r.Info.Modified); err != nil {
		return nil, failed(ctx, fileError(err), "write "+target)
	}
	return &FileCount{Entries: 1, Bytes: counted.done}, nil
}

// mayBecomeFile returns an error if a path of this machine is something that a file must not replace. Root could
// otherwise replace a device such as /dev/null for everybody.
func mayBecomeFile(target string) error {
	info, err := os.Stat(target)
	switch {
	case err != nil || info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonIsDirectory, "%s is a directory", target)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotRegular,
		"%s is a device, a pipe or a socket, not a file: choose another target", target)
}

// unixPerm returns the permission bits of a mode of the kernel.
func unixPerm(mode uint32) os.FileMode { return os.FileMode(mode).Perm() }
