package protocol

import (
	"encoding/binary"
	"errors"
	"io"
)

// StreamKindFile is the [StreamOpen.Kind] of operations on the files of a sandbox. [StreamOpen.Request] is a
// [FileRequest], and [StreamReply.Result] is a [FileAnswer].
const StreamKindFile = "file"

// Sizes of operations on files, in bytes.
const (
	// MaxFileInline is the maximum size of a request, of an answer and of a content that travels in the opening of a
	// stream. Larger ones travel on the stream, so that servers with a small max_payload carry them.
	MaxFileInline = 32 << 10

	MaxFileRequest = 4 << 20 // size of an encoded [FileRequest]
	MaxFileAnswer  = 1 << 20 // size of an encoded [FileAnswer]
	MaxFileRecord  = MaxFileAnswer
)

// FileRequest is one operation on the files of a container. Exactly one of the operations is set, or Long alone.
type FileRequest struct {
	Service string `json:"service,omitempty"` // the service whose container is meant; default: the sandbox's own
	User    string `json:"user,omitempty"`    // "name|uid[:group|gid]"; default: the container's user

	// Long says that this request is too long for the opening. The stream begins with this many bytes, which are the
	// encoded request.
	Long int `json:"long,omitempty"`

	Read    *FileRead    `json:"read,omitempty"`    // the bytes follow on the stream
	Write   *FileWrite   `json:"write,omitempty"`   // the client sends the bytes on the stream
	Stat    *FileStat    `json:"stat,omitempty"`    // answered with Stats
	List    *FileList    `json:"list,omitempty"`    // answered with Page
	Mkdir   *FileMkdir   `json:"mkdir,omitempty"`   // answered with File
	Move    *FileMove    `json:"move,omitempty"`    // answered with File
	Copy    *FileCopy    `json:"copy,omitempty"`    // answered with Count
	Remove  *FileRemove  `json:"remove,omitempty"`  // answered with Count
	Glob    *FileGlob    `json:"glob,omitempty"`    // answered with Page
	Grep    *FileGrep    `json:"grep,omitempty"`    // answered with Matches
	Edit    *FileEdit    `json:"edit,omitempty"`    // answered with Edited
	Changes *FileChanges `json:"changes,omitempty"` // answered with Page
	Watch   *FileWatch   `json:"watch,omitempty"`   // the stream carries answers with Events
	Pack    *FilePack    `json:"pack,omitempty"`    // the stream carries the tar archive
	Unpack  *FileUnpack  `json:"unpack,omitempty"`  // the client sends the tar archive on the stream

	// Content is the whole content of a Write, if Whole is set. Then no stream is needed.
	Content []byte `json:"content,omitempty"`
	Whole   bool   `json:"whole,omitempty"`

	// Compress says that the tar stream of a Pack or an Unpack is in records, which may be compressed. The sender of the
	// stream follows this field. Empty: not compressed; an Unpack then has no records. A worker that does not know the
	// field refuses the request with reason [ReasonUnknownField], and has done nothing.
	Compress FileCompression `json:"compress,omitempty"`

	// Inline asks to have the bytes of a Read in the answer, if there are no more than Inline bytes. At most
	// [MaxFileInline].
	Inline int `json:"inline,omitempty"`
}

// FileCompression says when the tar stream of a tree is compressed.
type FileCompression string

// The values of [FileCompression].
const (
	CompressNever  FileCompression = ""
	CompressAuto   FileCompression = "auto"   // compress while the link is slow
	CompressAlways FileCompression = "always" // compress, except blocks that hardly become smaller
)

// FileAnswer answers a [FileRequest].
type FileAnswer struct {
	File    *FileInfo    `json:"file,omitempty"` // description of the file; also for a Read and a Write
	Stats   *FileStats   `json:"stats,omitempty"`
	Page    *FilePage    `json:"page,omitempty"`
	Count   *FileCount   `json:"count,omitempty"` // number of entries and bytes; also for a Pack and an Unpack
	Matches *FileMatches `json:"matches,omitempty"`
	Edited  *FileEdited  `json:"edited,omitempty"`
	Events  *FileEvents  `json:"events,omitempty"`

	Content []byte `json:"content,omitempty"` // all bytes of a Read, if Whole is set
	Whole   bool   `json:"whole,omitempty"`
}

// Validate checks the request. Errors: invalid_argument with field operation, long, user, inline or content, or with
// the field of the operation.
func (r *FileRequest) Validate() error {
	operations := r.operations()
	switch {
	case r.Long < 0 || r.Long > MaxFileRequest:
		return Invalid("long", "must be at most %d, got %d", MaxFileRequest, r.Long)
	case r.Long > 0 && len(operations) > 0:
		return Invalid("long", "must not be set together with an operation")
	case r.Long > 0:
		return nil
	case len(operations) != 1:
		return Invalid("operation", "exactly one operation must be set, got %d", len(operations))
	case len(r.User) > maxFileUser:
		return Invalid("user", "must have at most %d bytes, got %d", maxFileUser, len(r.User))
	case r.Inline < 0 || r.Inline > MaxFileInline:
		return Invalid("inline", "must be at most %d, got %d", MaxFileInline, r.Inline)
	case r.Inline > 0 && r.Read == nil:
		return Invalid("inline", "is only valid with a read")
	case r.Compress != CompressNever && r.Compress != CompressAuto && r.Compress != CompressAlways:
		return Invalid("compress", "must be auto or always, got %.40q", r.Compress)
	case r.Compress != CompressNever && r.Pack == nil && r.Unpack == nil:
		return Invalid("compress", "is only valid with a pack or an unpack")
	case (r.Whole || len(r.Content) > 0) && r.Write == nil:
		return Invalid("content", "is only valid with a write")
	case len(r.Content) > 0 && !r.Whole:
		return Invalid("content", "must be the whole content, and whole must be set")
	}
	if r.Service != "" {
		if err := ValidateID("service", r.Service); err != nil {
			return err
		}
	}
	return operations[0].Validate()
}

// maxFileUser bounds the name of a user, in bytes.
const maxFileUser = 256

// Takes reports whether the client sends bytes on the stream after the request.
func (r *FileRequest) Takes() bool { return r.Write != nil && !r.Whole || r.Unpack != nil }

// Change returns the name of an operation that changes files, and the path that it changes, or the new path of a move
// or a copy. The name of an operation that only reads is empty.
func (r *FileRequest) Change() (operation, path string) {
	switch {
	case r.Write != nil:
		return "write", r.Write.Path
	case r.Mkdir != nil:
		return "mkdir", r.Mkdir.Path
	case r.Move != nil:
		return "move", r.Move.To
	case r.Copy != nil:
		return "copy", r.Copy.To
	case r.Remove != nil:
		return "remove", r.Remove.Path
	case r.Edit != nil:
		return "edit", r.Edit.Path
	case r.Unpack != nil:
		return "unpack", r.Unpack.Path
	}
	return "", ""
}

// operations returns the operations that are set.
func (r *FileRequest) operations() (set []interface{ Validate() error }) {
	add := func(is bool, operation interface{ Validate() error }) {
		if is {
			set = append(set, operation)
		}
	}
	add(r.Read != nil, r.Read)
	add(r.Write != nil, r.Write)
	add(r.Stat != nil, r.Stat)
	add(r.List != nil, r.List)
	add(r.Mkdir != nil, r.Mkdir)
	add(r.Move != nil, r.Move)
	add(r.Copy != nil, r.Copy)
	add(r.Remove != nil, r.Remove)
	add(r.Glob != nil, r.Glob)
	add(r.Grep != nil, r.Grep)
	add(r.Edit != nil, r.Edit)
	add(r.Changes != nil, r.Changes)
	add(r.Watch != nil, r.Watch)
	add(r.Pack != nil, r.Pack)
	add(r.Unpack != nil, r.Unpack)
	return set
}

// The kinds of records. What a worker sends on the stream of an operation consists of records, except the bytes of a
// Read. A record is one byte with its kind, four bytes with the size of its body as a big-endian number, and the body.
const (
	FileRecordData   byte = 'd' // bytes of a tar stream
	FileRecordZstd   byte = 'z' // bytes of a tar stream, as one zstd frame that expands to at most 256 KiB
	FileRecordAnswer byte = 'a' // a [FileAnswer]; except for a Watch, it ends the stream
)

// FileRecordHeader is the size of a record without its body, in bytes.
const FileRecordHeader = 5

// AppendFileRecord appends a record to buf. The body has at most [MaxFileRecord] bytes.
func AppendFileRecord(buf []byte, kind byte, body []byte) []byte {
	buf = binary.BigEndian.AppendUint32(append(buf, kind), uint32(len(body)))
	return append(buf, body...)
}

// FileRecords reads records from a stream.
type FileRecords struct {
	from io.Reader
	body []byte
}

// NewFileRecords returns a reader of the records in a stream.
func NewFileRecords(from io.Reader) *FileRecords { return &FileRecords{from: from} }

// Next returns the next record. Its body is valid until the next call. io.EOF means that the stream ended after a
// complete record. Other errors: those of the stream; unavailable with reason undecodable.
func (r *FileRecords) Next() (kind byte, body []byte, err error) {
	var header [FileRecordHeader]byte
	if _, err := io.ReadFull(r.from, header[:]); err != nil {
		return 0, nil, cutRecord(err)
	}
	size := binary.BigEndian.Uint32(header[1:])
	kind = header[0]
	known := kind == FileRecordData || kind == FileRecordZstd || kind == FileRecordAnswer
	if !known || size > MaxFileRecord {
		return 0, nil, Errorf(Unavailable, ReasonUndecodable,
			"the other end sent a record of kind %q with %d bytes, which no operation on files has", kind, size)
	}
	if int(size) > cap(r.body) {
		r.body = make([]byte, size)
	}
	r.body = r.body[:size]
	if _, err := io.ReadFull(r.from, r.body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, cutRecord(err)
	}
	return kind, r.body, nil
}

func cutRecord(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return Errorf(Unavailable, ReasonUndecodable, "the worker's answer ends in the middle of a record")
	}
	return err
}
