package protocol

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint returns the first half of the SHA-256 of a value's encoding, in hex. Values with equal fields have equal
// fingerprints in all versions: fields without a value are not encoded, so a field that a later version adds changes
// no fingerprint of a value that does not set it.
func Fingerprint(v any) string {
	sum := sha256.Sum256(Encode(v))
	return hex.EncodeToString(sum[:16])
}
