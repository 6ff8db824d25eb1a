package protocol

import (
	"crypto/sha256"
	"encoding/hex"
)

// OutputHash returns the SHA-256 of a whole output stream in the form of [ExecDetails].StdoutSHA256: in hex, or empty
// if the stream has no bytes.
func OutputHash(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
