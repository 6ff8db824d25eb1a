package control

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/boxfleet/boxfleet/protocol"
)

// MaxRecord limits the size of an exit record on disk.
const MaxRecord = 64 << 10

// Record is the exit record of an exec. It is on disk until the exec is forgotten. Under an older supervisor, processes
// of the sandbox can write to the file. So the record is sealed with the sandbox's key, and names its exec: a forged
// record, or the record of another exec, is not accepted.
type Record struct {
	Version int    `json:"v"`
	Boot    string `json:"boot"`
	Result  Result `json:"result"`
}

// Seal encodes and seals a record. The result is the HMAC-SHA256 of the body (32 bytes), followed by the body.
func Seal(key []byte, r Record) []byte {
	r.Version = Version
	r.Result = r.Result.WithoutOutput()
	body := protocol.Encode(&r)
	return append(sum(key, body), body...)
}

// Open verifies and decodes the record of exec id. Any failure is [ErrForged].
func Open(key []byte, id string, data []byte) (*Record, error) {
	if len(key) == 0 || len(data) < sha256.Size || len(data) > MaxRecord {
		return nil, ErrForged
	}
	seal, body := data[:sha256.Size], data[sha256.Size:]
	r := &Record{}
	if !hmac.Equal(seal, sum(key, body)) || protocol.Decode(body, r) != nil || r.Result.ID != id {
		return nil, ErrForged
	}
	return r, nil
}

// ErrForged is the error for an exit record that the supervisor did not write for this exec.
var ErrForged = protocol.Errorf(protocol.Internal, protocol.ReasonInterrupted,
	"the exec's exit record was not written by the sandbox's supervisor")

func sum(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}
