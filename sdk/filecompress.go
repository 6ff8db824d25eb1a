package sdk

import (
	"context"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/zrecord"
)

// startTree opens an operation that carries a tar stream. It returns the request that the worker has accepted. That
// request asks for no compression if the worker is too old to compress.
func (f *Files) startTree(ctx context.Context, r protocol.FileRequest, s *settings) (
	*stream.Conn, protocol.FileRequest, error) {
	r.Compress = protocol.CompressAuto
	if s.files.compress != nil {
		r.Compress = *s.files.compress
	}
	conn, _, err := f.start(ctx, r, true)
	if err != nil && r.Compress != protocol.CompressNever && protocol.AsError(err).Reason == protocol.ReasonUnknownField {
		if r.Compress, err = forOlder(r.Compress); err == nil {
			conn, _, err = f.start(ctx, r, true)
		}
	}
	if err == nil && conn == nil {
		err = errNoAnswer
	}
	return conn, r, err
}

// forOlder returns the compression to ask of an older worker, which cannot compress.
func forOlder(when protocol.FileCompression) (protocol.FileCompression, error) {
	if when == protocol.CompressAlways {
		return when, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the worker is older than this client and cannot compress: upgrade it, or leave out the compression")
	}
	return protocol.CompressNever, nil
}

// plainRecords writes the tar stream in a worker's records to w. It returns an error of w as a writerError.
type plainRecords struct {
	w       io.Writer
	decoder zrecord.Decoder
}

func (p *plainRecords) write(kind byte, body []byte) (err error) {
	if kind == protocol.FileRecordZstd {
		if body, err = p.decoder.Decode(body); err != nil {
			return err
		}
	}
	if _, err = p.w.Write(body); err != nil {
		return &writerError{err}
	}
	return nil
}

// flushing is a writer whose Flush must be called after the last Write.
type flushing interface {
	io.Writer
	Flush() error
}

// treeWriter returns the writer of an upload's content to its stream.
func treeWriter(conn *stream.Conn, when protocol.FileCompression) flushing {
	if when == protocol.CompressNever {
		return unbuffered{conn}
	}
	return zrecord.NewWriter(conn, when)
}

type unbuffered struct{ io.Writer }

func (unbuffered) Flush() error { return nil }
