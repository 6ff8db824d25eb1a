package protocol

// EventPage is a page of a sandbox's history, the answer of the endpoint "events". [Reply.Sequence] is the
// sequence of the sandbox's last event; more pages follow while Next is at most that sequence.
type EventPage struct {
	Events []Event `json:"events"` // with consecutive sequences
	Oldest uint64  `json:"oldest"` // sequence of the oldest retained event
	Next   uint64  `json:"next"`   // sequence at which the next page starts, whether that event exists yet or not
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

// MaxOutputPage is the maximum size of a page of output in bytes.
const MaxOutputPage = 256 << 10
