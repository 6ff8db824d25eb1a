package protocol

// EventPage is a piece of a sandbox's history, as the read "events" answers it. The number of the last
// event that there is stands beside it, in [Reply.Sequence]: there are more where Next is not greater.
type EventPage struct {
	Events []Event `json:"events"` // numbered one after another
	Oldest uint64  `json:"oldest"` // number of the oldest event that is still kept
	Next   uint64  `json:"next"`   // from which the next page begins, whether there is such an event yet or not
}

// OutputPage is a piece of one stream of output, as the read "output" answers it.
type OutputPage struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"` // of the first byte of Data in its stream
	Data   []byte `json:"data"`   // at most as many bytes as were asked for, and fewer at any time
	Next   int64  `json:"next"`   // offset from which the next page begins
	Oldest int64  `json:"oldest"` // offset of the first byte that is still kept
	End    int64  `json:"end"`    // offset behind the last byte that there is now

	// Missing is how many bytes, from the offset that was asked for up to Offset, are no longer kept, or
	// were lost.
	Missing int64 `json:"missing,omitempty"`

	Ended     bool   `json:"ended,omitempty"`        // nothing comes behind End any more
	Truncated bool   `json:"truncated,omitempty"`    // the exec wrote more, to this stream or the other, than its output_limit keeps
	Lost      *Error `json:"output_error,omitempty"` // why what the exec wrote behind End is missing
}

// Bounds of a page of output, in bytes.
const MaxOutputPage = 256 << 10
