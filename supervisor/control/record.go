package control

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/boxfleet/boxfleet/protocol"
)

// MaxRecord limits the size of an exit record on disk.
const MaxRecord = 64 << 10

// Record is the exit record of an exec, on disk until the exec is forgotten. It is sealed with the sandbox's key and
// names its exec, so that neither a forged record nor that of another exec is accepted: where the supervisor is an
// older one, processes of the sandbox can write to the file.
type Record struct {
	Version int    `json:"v"`
	Boot    string `json:"boot"`
	Result  Result `json:"result"`
}

// Seal encodes the record: 32 bytes of HMAC-SHA256, then the body that they cover.
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

// ErrForged says that the supervisor did not write this exit record for this exec.
var ErrForged = protocol.Errorf(protocol.Internal, protocol.ReasonInterrupted,
	"the exit record is not the supervisor's")

func sum(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}
