package protocol

import (
	"regexp"
	"strings"
)

// MaxIDLength is the maximum length of an id in bytes.
const MaxIDLength = 64

var idPattern = regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`)

// ValidateID checks an id of a sandbox, exec, tenant, worker or request: 1 to 64 characters of [A-Za-z0-9_-].
// Only a validated id may become part of a subject or a path. Errors: invalid_argument with the given field.
func ValidateID(field, id string) error {
	if id == "" {
		return Invalid(field, "must not be empty")
	}
	if !idPattern.MatchString(id) {
		return Invalid(field, "must be 1 to %d characters of A-Z a-z 0-9 _ -, got %.80q", MaxIDLength, id)
	}
	return nil
}

// generatedPattern matches generated ids: ULIDs in lower case.
var generatedPattern = regexp.MustCompile(`\A[0-7][0-9a-hjkmnp-tv-z]{25}\z`)

// IsGeneratedID reports whether an id has the form of the ids that Boxfleet generates. Names never have this
// form.
func IsGeneratedID(id string) bool { return generatedPattern.MatchString(id) }

// MinPrefix is the minimum length of an id prefix in characters. The first ten characters of a generated id
// encode the time of its creation.
const MinPrefix = 4

var prefixPattern = regexp.MustCompile(`\A[0-7][0-9a-hjkmnp-tv-z]{3,24}\z`)

// IsIDPrefix reports whether text has the form of a prefix of a generated id.
func IsIDPrefix(text string) bool { return prefixPattern.MatchString(text) }

// ValidateName checks a sandbox name: a valid id that does not have the form of a generated id. At most one of a
// tenant's pending, ready and stopped sandboxes has a given name. Errors: invalid_argument with the given field.
func ValidateName(field, name string) error {
	if err := ValidateID(field, name); err != nil {
		return err
	}
	if IsGeneratedID(name) {
		return Invalid(field, "must not look like a generated id, got %s", name)
	}
	return nil
}

// ValidateUser checks the name of a user: an id, or @ and an id for an operator, whose name no tenant's user can have.
// Errors: invalid_argument with the given field.
func ValidateUser(field, user string) error {
	return ValidateID(field, strings.TrimPrefix(user, "@"))
}
