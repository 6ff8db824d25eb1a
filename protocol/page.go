package protocol

import "time"

// EventPage is a page of a sandbox's history, the answer of the endpoint "events". [Reply.Sequence] is the
// sequence of the sandbox's last event; more pages follow while Next is at most that sequence.
type EventPage struct {
	Events []Event `json:"events"` // with consecutive sequences
	Oldest uint64  `json:"oldest"` // sequence of the oldest retained event
	Next   uint64  `json:"next"`   // sequence at which the next page starts; that event may not exist yet
}

// OutputPage is a page of one output stream, the answer of the endpoint "output". Offsets and sizes are in
// bytes.
type OutputPage struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"` // offset of the first byte of Data in the stream
	Data   []byte `json:"data"`   // at most as many bytes as requested; may be fewer
	Next   int64  `json:"next"`   // offset at which the next page starts
	Oldest int64  `json:"oldest"` // offset of the first retained byte
	End    int64  `json:"end"`    // current end of the stream

	// Missing is how many bytes between the requested offset and Offset are no longer retained or were lost.
	Missing int64 `json:"missing,omitempty"`

	Ended bool `json:"ended,omitempty"` // no more output follows End
	// Truncated reports that the exec wrote more to either stream than its output_limit retains.
	Truncated bool   `json:"truncated,omitempty"`
	Lost      *Error `json:"output_error,omitempty"` // why output that the exec wrote after End is missing
}

// BatchPage is a page of the messages of a sandbox's history, as the event log stores them: the answer of the endpoint
// "batches". It is for clients that fold or follow a history; [EventPage] is easier to read.
type BatchPage struct {
	Batches []StoredBatch `json:"batches"` // in the order of their records
	More    bool          `json:"more,omitempty"`
}

// StoredBatch is one message of the event log.
type StoredBatch struct {
	Record uint64 `json:"record"` // stream sequence of the message
	Data   []byte `json:"data"`   // for [DecodeBatch]
}

// ChunkPage is a page of the messages in which the output of an exec, a service or the sandbox's own command is stored:
// the answer of the endpoint "chunks". [OutputPage] is easier to read.
type ChunkPage struct {
	Chunks []StoredChunk `json:"chunks"` // in the order of their records
	Next   uint64        `json:"next"`   // record of the last message of this page: After in the query of the next page
	More   bool          `json:"more,omitempty"`

	// Host is the id of the host that the sandbox is on; empty: the sandbox has no host. Only the worker of this host
	// publishes output of the sandbox.
	Host string `json:"host,omitempty"`
}

// StoredChunk is one message of the stream of output. A chunk may be stored twice, or after later parts of its stream.
// Offset shows where the chunk belongs.
type StoredChunk struct {
	Stream     string    `json:"stream"`
	Offset     int64     `json:"offset"` // offset of the first byte of Data in its stream
	Data       []byte    `json:"data"`
	At         time.Time `json:"at"`          // when it was stored
	NextStdout int64     `json:"next_stdout"` // once this chunk is stored, stdout is complete up to this offset
	NextStderr int64     `json:"next_stderr"`
}

// MessagePage is the answer of the endpoint "messages": a page of the messages of a sandbox's history, exactly as they
// are stored. It includes messages that are not part of the history because their writer is not proven. Clients check
// signatures with this page.
type MessagePage struct {
	Messages []StoredMessage `json:"messages"` // in the order of their records
	More     bool            `json:"more,omitempty"`
}

// StoredMessage is one message of the event log as it is stored.
type StoredMessage struct {
	Record  uint64              `json:"record"` // stream sequence of the message
	At      time.Time           `json:"at"`     // when it was stored
	Headers map[string][]string `json:"headers"`
	Data    []byte              `json:"data"` // a [Batch] in msgpack
}

// WriterPage is the answer of the endpoint "writers". It names the owners of keys, and says which messages of the event
// log must be signed.
type WriterPage struct {
	Deployment string             `json:"deployment"`       // id of the deployment; signatures contain it
	Signed     bool               `json:"signed,omitempty"` // messages after the record Since must be signed
	Since      uint64             `json:"since,omitempty"`
	Writers    []RegisteredWriter `json:"writers"` // owners of those queried keys that are registered
}

// RegisteredWriter is the coordinator or worker that a key belongs to.
type RegisteredWriter struct {
	Key  string    `json:"key"` // public user key of NATS
	Role Owner     `json:"role"`
	Name string    `json:"name"`
	Host string    `json:"host,omitempty"` // id of a worker's Docker host
	At   time.Time `json:"at"`             // when the key was registered
}

// Writer returns the writer without its key.
func (w *RegisteredWriter) Writer() Writer { return Writer{Role: w.Role, Name: w.Name, Host: w.Host} }

// Rules returns the deployment's rules for messages.
func (w *WriterPage) Rules() Rules {
	return Rules{Deployment: w.Deployment, Signed: w.Signed, Since: w.Since}
}

// MaxKeys is the largest number of keys in a query of the endpoint "writers".
const MaxKeys = 100

// Upload is the answer to each message of an upload, and the answer of the endpoint "uploaded".
type Upload struct {
	ID     string `json:"id,omitempty"`     // where to send the pieces, in the answer to the first message
	Stored bool   `json:"stored,omitempty"` // the content is stored, and kept long enough for a create to use it
}

// MaxOutputPage is the maximum size of a page of output in bytes.
const MaxOutputPage = 256 << 10
