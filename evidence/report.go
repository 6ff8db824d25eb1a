package evidence

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Result is the verdict on a message.
type Result string

// The results.
const (
	Proven   Result = "proven"   // its writer is proven
	Unsigned Result = "unsigned" // part of the history, from the time before the deployment required signatures
	Refused  Result = "refused"  // not part of the history: no reader accepts it
)

// Report is the result of a check.
type Report struct {
	Tenant     string `json:"tenant"`
	Sandbox    string `json:"sandbox"`
	Deployment string `json:"deployment"`
	Digest     string `json:"digest"` // digest of the evidence

	// Valid is true if nothing is wrong: no message is refused or missing, and Problems is empty.
	Valid    bool     `json:"valid"`
	Problems []string `json:"problems,omitempty"` // what is wrong, one sentence each

	Proven   int `json:"proven"` // Proven, Unsigned and Refused count the messages with each result
	Unsigned int `json:"unsigned"`
	Refused  int `json:"refused"`
	// Since is the last record that may be unsigned. It has a meaning only if the deployment requires signatures.
	Since uint64 `json:"since,omitempty"`

	State    protocol.SandboxState `json:"state"`    // state of the sandbox after the last accepted message
	Sequence uint64                `json:"sequence"` // number of the sandbox's last event
	Writers  []Signer              `json:"writers"`  // the signers of accepted messages
	Messages []Verdict             `json:"messages"`
	Execs    []Output              `json:"execs,omitempty"` // ended execs whose output has a hash
}

// Signer is a writer with a key, and how many accepted messages it signed.
type Signer struct {
	protocol.RegisteredWriter
	Messages int `json:"messages"`
}

// Verdict describes one message and its result.
type Verdict struct {
	Record uint64    `json:"record"`
	At     time.Time `json:"at"`              // when it was stored, by the store's clock; no signature covers this time
	First  uint64    `json:"first,omitempty"` // numbers of its first and last event; 0 if it cannot be decoded
	Last   uint64    `json:"last,omitempty"`
	Kinds  []string  `json:"kinds,omitempty"`
	Writer string    `json:"writer,omitempty"` // the writer that the message names
	Key    string    `json:"key,omitempty"`    // the key that the signature names
	Result Result    `json:"result"`
	Why    string    `json:"why,omitempty"` // why it is refused
}

// Output describes the output of an ended exec, according to the exec's last event.
type Output struct {
	Exec         string `json:"exec"`
	Inline       bool   `json:"inline,omitempty"` // the output is in the event, and its hash was checked
	StdoutBytes  int64  `json:"stdout_bytes"`
	StdoutSHA256 string `json:"stdout_sha256,omitempty"`
	StderrBytes  int64  `json:"stderr_bytes"`
	StderrSHA256 string `json:"stderr_sha256,omitempty"`
}
