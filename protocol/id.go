package protocol

import "regexp"

// MaxIDLength is the longest id, in bytes.
const MaxIDLength = 64

var idPattern = regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`)

// ValidateID checks an id of a sandbox, exec, tenant, worker or request: 1 to 64 characters of
// [A-Za-z0-9_-]. Only what passes here may become a token of a subject or part of a path.
func ValidateID(field, id string) error {
	if id == "" {
		return Invalid(field, "must not be empty")
	}
	if !idPattern.MatchString(id) {
		return Invalid(field, "must be 1 to %d characters of A-Z a-z 0-9 _ -, got %.80q", MaxIDLength, id)
	}
	return nil
}
