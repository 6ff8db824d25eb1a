package sdk

import (
	"context"
	"errors"
	"io"
	"iter"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// copyBuffer is the size of one read or write of a file's content.
const copyBuffer = 256 << 10

// MaxReadFile is how many bytes [Files.ReadFile] reads at most, unless [WithMaxBytes] is given.
const MaxReadFile = 64 << 20

var errNoAnswer error = protocol.Errorf(protocol.Unavailable, protocol.ReasonUndecodable,
	"the worker's answer does not belong to the operation")

// start opens an operation. conn is nil if the operation needs no stream.
func (f *Files) start(ctx context.Context, r protocol.FileRequest, bulk bool) (
	conn *stream.Conn, answer *protocol.FileAnswer, err error) {
	r.Service, r.User = f.service, f.user
	if err := r.Validate(); err != nil {
		return nil, nil, err
	}
	encoded := protocol.Encode(r)
	request, long := encoded, len(encoded) > protocol.MaxFileInline+fileEnvelope
	if long {
		if len(encoded) > protocol.MaxFileRequest {
			return nil, nil, protocol.Invalid("operation", "has %d bytes, at most %d are allowed", len(encoded),
				protocol.MaxFileRequest)
		}
		request = protocol.Encode(protocol.FileRequest{Service: r.Service, User: r.User, Long: len(encoded)})
	}
	change, _ := r.Change()
	o := opening{open: protocol.StreamOpen{Kind: protocol.StreamKindFile, Request: request, Bulk: bulk},
		repeats: change == "", waits: r.Watch == nil}
	conn, reply, err := o.do(ctx, f.sandbox)
	if err != nil {
		return nil, nil, err
	}
	answer = &protocol.FileAnswer{}
	if len(reply.Result) > 0 {
		err = protocol.Decode(reply.Result, answer)
	}
	if err == nil && long {
		if conn == nil {
			return nil, nil, errNoAnswer
		}
		_, err = conn.Write(encoded)
	}
	if err != nil && conn != nil {
		conn.Reset(err)
	}
	return conn, answer, err
}

// fileEnvelope is how many bytes a request may have in addition to its content. A larger request does not travel in the
// opening of the stream, but in the stream.
const fileEnvelope = 10 << 10

// ask carries out an operation that sends no bytes, and returns its answer. fits checks the answer.
func (f *Files) ask(ctx context.Context, r protocol.FileRequest, doing string, fits func(*protocol.FileAnswer) bool) (
	*protocol.FileAnswer, error) {
	conn, answer, err := f.start(ctx, r, false)
	if err != nil {
		return nil, failed(ctx, err, doing)
	}
	if conn != nil {
		defer endWith(ctx, conn)()
		if answer, err = lastAnswer(conn); err != nil {
			return nil, failed(ctx, err, doing)
		}
	}
	if !fits(answer) {
		return nil, errNoAnswer
	}
	return answer, nil
}

// endWith resets a stream when ctx ends. The returned function ends the stream.
func endWith(ctx context.Context, conn *stream.Conn) (end func()) {
	stop := context.AfterFunc(ctx, func() { conn.Reset(ctxEnded(ctx.Err(), "use files")) })
	return func() {
		stop()
		conn.Reset(nil) // does nothing to a stream that both ends have ended
	}
}

// lastAnswer reads the answer that ends a stream.
func lastAnswer(conn *stream.Conn) (*protocol.FileAnswer, error) {
	return readAnswer(protocol.NewFileRecords(conn), nil)
}

// readAnswer reads records until an answer. Data goes to w; if w is nil, data is refused.
func readAnswer(records *protocol.FileRecords, w io.Writer) (*protocol.FileAnswer, error) {
	plain := plainRecords{w: w}
	defer plain.decoder.Close()
	for {
		kind, body, err := records.Next()
		switch {
		case errors.Is(err, io.EOF), err == nil && kind != protocol.FileRecordAnswer && w == nil:
			return nil, errNoAnswer
		case err != nil:
			return nil, err
		case kind == protocol.FileRecordAnswer:
			answer := &protocol.FileAnswer{}
			return answer, protocol.Decode(body, answer)
		}
		if err := plain.write(kind, body); err != nil {
			return nil, err
		}
	}
}

// writerError is an error of the caller's writer, not of the stream.
type writerError struct{ error }

func (w *writerError) Unwrap() error { return w.error }

// FileReader reads the bytes of a file. The caller must close it.
type FileReader struct {
	// Info describes the file as it was when it was opened. If the file changes while it is read, Read returns the new
	// bytes.
	Info FileInfo

	ctx  context.Context
	path string
	from io.Reader
	end  func()
}

// Read implements [io.Reader]. Errors are, or wrap, an *Error; a stream that ends early is an error.
func (r *FileReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed(r.ctx, err, "read "+r.path)
	}
	return n, err
}

// Close ends the reading. It returns no error.
func (r *FileReader) Close() error {
	r.end()
	return nil
}

// Write writes a file from content. Until all bytes have arrived, readers see the old file, unless [WithAppend] is
// given. If content returns an error, or ctx ends, the file does not change. After any other error, such as
// unavailable, the file is either unchanged or complete.
//
// Write reads content in another goroutine. If the sandbox refuses the file, or ctx ends, Write returns at once, even
// while a Read of content blocks. That Read is the last one; do not use content before it has returned.
//
// Options: [WithMode], [WithOwner], [WithParents], [WithAppend], [WithNew].
func (f *Files) Write(ctx context.Context, path string, content io.Reader, opts ...WriteFileOption) (*FileInfo, error) {
	return f.write(ctx, writeRequest(path, opts), content, nil)
}

func (f *Files) write(ctx context.Context, r protocol.FileRequest, content io.Reader, sent func(total int64)) (
	*FileInfo, error) {
	doing := "write " + r.Write.Path
	conn, _, err := f.start(ctx, r, true)
	if err == nil && conn == nil {
		err = errNoAnswer
	}
	if err != nil {
		return nil, failed(ctx, err, doing)
	}
	answer, err := sendContent(ctx, conn, unbuffered{conn}, content, sent, doing)
	switch {
	case err != nil:
		return nil, err
	case answer.File == nil:
		return nil, errNoAnswer
	}
	return answer.File, nil
}

// Unpack writes a tar stream below a directory, which is created if it is missing. Entries that would leave the
// directory, and entries other than files, directories and links, end the operation with invalid_argument. If Unpack
// fails, the entries that are already written stay. Options: [WithOwner], [WithKeptOwners], [WithOverwrite].
func (f *Files) Unpack(ctx context.Context, path string, tarball io.Reader, opts ...UnpackOption) (*FileCount, error) {
	return f.unpack(ctx, path, tarball, settingsOf(opts, UnpackOption.forUnpack))
}

// unpack reports the progress if the settings ask for that.
func (f *Files) unpack(ctx context.Context, path string, tarball io.Reader, s *settings) (*FileCount, error) {
	r := protocol.FileRequest{Unpack: &protocol.FileUnpack{
		Path: path, Owner: s.owner, KeepOwner: s.files.keepOwner, Overwrite: s.files.overwrite}}
	doing := "unpack into " + path
	conn, r, err := f.startTree(ctx, r, s)
	if err != nil {
		return nil, failed(ctx, err, doing)
	}
	answer, err := sendContent(ctx, conn, treeWriter(conn, r.Compress), tarball, s.sent(-1), doing)
	switch {
	case err != nil:
		return nil, err
	case answer.Count == nil:
		return nil, errNoAnswer
	}
	return answer.Count, nil
}

// sendContent sends content to a stream through w, and returns the answer. sent may be nil; it is called with the
// number of bytes sent so far.
func sendContent(ctx context.Context, conn *stream.Conn, w flushing, content io.Reader, sent func(total int64),
	doing string) (*protocol.FileAnswer, error) {
	defer endWith(ctx, conn)()
	source := readContent(content)
	defer source.end()
	own, err := source.sendTo(conn, w, sent)
	if own != nil {
		conn.Reset(protocol.Errorf(protocol.Cancelled, protocol.ReasonCancelRequested,
			"the client could not read the content"))
		return nil, failed(ctx, fileError(own), doing)
	}
	if err != nil { // the error with which the worker ended the stream
		return nil, failed(ctx, err, doing)
	}
	answer, err := lastAnswer(conn)
	return answer, failed(ctx, err, doing)
}

// onlyWriter hides the other methods of a writer, so that io.CopyBuffer uses the given buffer.
type onlyWriter struct{ io.Writer }

// Read opens a regular file for reading. When ctx ends, reading fails.
//
// Options: [WithRange], [WithMaxBytes]. Errors: failed_precondition with reason is_directory or not_regular; a FIFO or
// a device never blocks the call.
func (f *Files) Read(ctx context.Context, path string, opts ...ReadFileOption) (*FileReader, error) {
	return f.read(ctx, path, settingsOf(opts, ReadFileOption.forReadFile))
}

func (f *Files) read(ctx context.Context, path string, s *settings) (*FileReader, error) {
	if err := s.checkMaxBytes(); err != nil {
		return nil, err
	}
	r := protocol.FileRequest{Inline: protocol.MaxFileInline,
		Read: &protocol.FileRead{Path: path, Offset: s.files.offset, Length: s.files.length}}
	conn, answer, err := f.start(ctx, r, true)
	if err != nil {
		return nil, failed(ctx, err, "read "+path)
	}
	if answer.File == nil || (conn == nil) != answer.Whole {
		if conn != nil {
			conn.Reset(errNoAnswer)
		}
		return nil, errNoAnswer
	}
	reader := &FileReader{Info: *answer.File, ctx: ctx, path: path}
	if conn == nil {
		reader.from, reader.end = &inline{left: answer.Content}, func() {}
	} else {
		reader.from, reader.end = conn, endWith(ctx, conn)
	}
	if s.files.maxBytes > 0 {
		reader.from = &boundedReader{r: reader.from, path: path, most: s.files.maxBytes}
	}
	return reader, nil
}

// inline reads bytes that came with an answer.
type inline struct{ left []byte }

func (i *inline) Read(p []byte) (int, error) {
	if len(i.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, i.left)
	i.left = i.left[n:]
	return n, nil
}

// ReadFile reads a whole file, or with [WithRange] a part. Options: [WithRange], [WithMaxBytes]. Error:
// resource_exhausted with reason too_large for more than [MaxReadFile] or the bytes of WithMaxBytes.
func (f *Files) ReadFile(ctx context.Context, path string, opts ...ReadFileOption) ([]byte, error) {
	s := settingsOf(opts, ReadFileOption.forReadFile)
	if s.files.maxBytes == 0 {
		s.files.maxBytes = MaxReadFile
	}
	r, err := f.read(ctx, path, s)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Pack writes a directory or a file to w as a tar stream. Names are relative to the directory, which is the entry "./";
// a single file has its own name. Devices, sockets, FIFOs and files that cannot be read are left out, and the result
// names them. If Pack returns an error, the stream is not complete. The sandbox decides what is in the stream, so do
// not trust it: [Files.Download] unpacks it safely.
//
// Options: [WithExclude], [WithMaxBytes], [WithCompression].
func (f *Files) Pack(ctx context.Context, path string, w io.Writer, opts ...PackOption) (*FileCount, error) {
	s := settingsOf(opts, PackOption.forPack)
	excludes, err := globsOf(s.exclude)
	if err != nil {
		return nil, err
	}
	return f.pack(ctx, path, w, excludes, s)
}

func (f *Files) pack(ctx context.Context, path string, w io.Writer, excludes []string, s *settings) (
	*FileCount, error) {
	if err := s.checkMaxBytes(); err != nil {
		return nil, err
	}
	if s.files.maxBytes > 0 {
		w = &boundedWriter{w: w, path: path, most: s.files.maxBytes}
	}
	doing := "pack " + path
	conn, _, err := f.startTree(ctx, protocol.FileRequest{Pack: &protocol.FilePack{Path: path, Excludes: excludes}}, s)
	if err != nil {
		return nil, failed(ctx, err, doing)
	}
	defer endWith(ctx, conn)()
	answer, err := readAnswer(protocol.NewFileRecords(conn), w)
	if own := (*writerError)(nil); errors.As(err, &own) {
		return nil, own.error
	}
	switch {
	case err != nil:
		return nil, failed(ctx, err, doing)
	case answer.Count == nil:
		return nil, errNoAnswer
	}
	return answer.Count, nil
}

// Watch reports changes below a directory as they happen, until ctx ends or the caller's loop ends. The first event is
// [protocol.FileWatching]: later changes are reported. An event [protocol.FileRescan] says that events are missing, and
// that the caller must read the tree again. Watch does not continue after an error, such as unavailable with reason
// stream_lost: call Watch again, and read the tree.
//
// Options: [WithRecursive], [WithExclude].
func (f *Files) Watch(ctx context.Context, path string, opts ...WatchOption) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) {
		if err := f.watch(ctx, path, settingsOf(opts, WatchOption.forWatch), yield); err != nil {
			yield(FileEvent{}, failed(ctx, err, "watch "+path))
		}
	}
}

func (f *Files) watch(ctx context.Context, path string, s *settings, yield func(FileEvent, error) bool) error {
	excludes, err := globsOf(s.exclude)
	if err != nil {
		return err
	}
	conn, _, err := f.start(ctx, protocol.FileRequest{Watch: &protocol.FileWatch{
		Path: path, Recursive: s.files.recursive, Excludes: excludes}}, false)
	if err != nil {
		return err
	}
	if conn == nil {
		return errNoAnswer
	}
	defer endWith(ctx, conn)()
	for records := protocol.NewFileRecords(conn); ; {
		answer, err := readAnswer(records, nil)
		if err != nil {
			return err
		}
		if answer.Events == nil {
			return errNoAnswer
		}
		for _, e := range answer.Events.Events {
			if !yield(e, nil) {
				return nil
			}
		}
	}
}
