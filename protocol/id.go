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

// generatedPattern is what generated ids look like: a ULID in lower case.
var generatedPattern = regexp.MustCompile(`\A[0-7][0-9a-hjkmnp-tv-z]{25}\z`)

// GeneratedID says whether an id looks like those that Boxfleet generates. Such a text is never a name.
func GeneratedID(id string) bool { return generatedPattern.MatchString(id) }

// MinPrefix is how many characters of a generated id a prefix has at least. The first ten of them are the time
// of its making.
const MinPrefix = 4

var prefixPattern = regexp.MustCompile(`\A[0-7][0-9a-hjkmnp-tv-z]{3,24}\z`)

// IDPrefix says whether a text may be the prefix of a generated id.
func IDPrefix(text string) bool { return prefixPattern.MatchString(text) }

// ValidateName checks a name of a sandbox: an id by its form, which does not look like a generated one. At any time
// at most one of a tenant's sandboxes that are pending, ready or stopped has a name.
func ValidateName(field, name string) error {
	if err := ValidateID(field, name); err != nil {
		return err
	}
	if GeneratedID(name) {
		return Invalid(field, "must not look like a generated id, got %s", name)
	}
	return nil
}
