package fleet

import (
	"context"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/sdk/environment"
)

// fileError translates the error of a file operation.
func fileError(ctx context.Context, err error, doing, path string) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return environment.Wrap(environment.Cancelled, ctx.Err(), doing+" "+path)
	}
	why := protocol.AsError(err)
	kind := kinds[why.Reason]
	if kind == "" {
		kind = kindOf(why.Code)
	}
	// A path below a file does not exist. Only writes and lists report that a part of the path is a file.
	if kind == environment.NotDirectory && doing != "write" && doing != "list" {
		kind = environment.NotFound
	}
	return environment.Wrap(kind, err, doing+" "+path)
}

// ReadFile implements [environment.Environment].
func (e *Environment) ReadFile(ctx context.Context, path string) ([]byte, error) {
	if err := environment.CheckPath("path", path); err != nil {
		return nil, err
	}
	content, err := e.files.ReadFile(ctx, path)
	return content, fileError(ctx, err, "read", path)
}

// OpenFile implements [environment.Streamer].
func (e *Environment) OpenFile(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := environment.CheckPath("path", path); err != nil {
		return nil, err
	}
	r, err := e.files.Read(ctx, path)
	if err != nil {
		return nil, fileError(ctx, err, "read", path)
	}
	return r, nil
}

// WriteFile implements [environment.Environment].
func (e *Environment) WriteFile(ctx context.Context, path string, content []byte) error {
	if err := environment.CheckPath("path", path); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fileError(ctx, ctx.Err(), "write", path)
	}
	_, err := e.files.WriteFile(ctx, path, content, sdk.WithParents())
	return fileError(ctx, err, "write", path)
}

// WriteFileFrom implements [environment.Streamer].
func (e *Environment) WriteFileFrom(ctx context.Context, path string, content io.Reader) error {
	if err := environment.CheckPath("path", path); err != nil {
		return err
	}
	source := &reader{from: content}
	_, err := e.files.Write(ctx, path, source, sdk.WithParents())
	if source.err != nil {
		return source.err
	}
	return fileError(ctx, err, "write", path)
}

// reader keeps the error of the caller's reader.
type reader struct {
	from io.Reader
	err  error
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// RemoveFile implements [environment.Environment].
func (e *Environment) RemoveFile(ctx context.Context, path string) error {
	if err := environment.CheckPath("path", path); err != nil {
		return err
	}
	info, err := e.files.Stat(ctx, path)
	switch {
	case err != nil:
	case info.Type == protocol.FileDirectory: // Remove would also remove an empty directory
		return environment.Errorf(environment.IsDirectory, "remove %s: it is a directory", path)
	case info.Type != protocol.FileRegular && info.Type != protocol.FileLink:
		return environment.Errorf(environment.NotRegular, "remove %s: it is a device, a FIFO or a socket", path)
	default:
		_, err = e.files.Remove(ctx, path)
	}
	return fileError(ctx, err, "remove", path)
}

// ListFiles implements [environment.Environment].
func (e *Environment) ListFiles(ctx context.Context, path string) ([]environment.File, error) {
	if err := environment.CheckPath("path", path); err != nil {
		return nil, err
	}
	files := []environment.File{}
	for f, err := range e.files.List(ctx, path, sdk.WithHidden(), sdk.WithPageSize(protocol.MaxFilePage)) {
		if err != nil {
			return nil, fileError(ctx, err, "list", path)
		}
		files = append(files, environment.File{Name: f.Path, Type: typeOf(f.Type)})
	}
	return files, nil
}

func typeOf(t protocol.FileType) environment.FileType {
	switch t {
	case protocol.FileRegular:
		return environment.TypeFile
	case protocol.FileDirectory:
		return environment.TypeDirectory
	case protocol.FileLink:
		return environment.TypeLink
	}
	return environment.TypeOther
}
