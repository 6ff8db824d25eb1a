// Package imageref parses image references as Docker does and decides which registries images may come from. It is not
// part of protocol, because the supervisor of every sandbox links protocol, and the library for references would add
// about a megabyte of regular expressions to each supervisor.
package imageref

import (
	"github.com/distribution/reference"

	"github.com/boxfleet/boxfleet/protocol"
)

// ByDigest replaces the tag of a full reference by a digest. Errors: invalid_argument, or a parse error if full is not
// a reference.
func ByDigest(full, digest string) (string, error) {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return "", err
	}
	return Full("", named.Name()+"@"+digest)
}

// Full returns the full form of an image reference: with its registry, and with a tag if it has neither tag nor
// digest, as in "docker.io/library/busybox:latest". Errors: invalid_argument with the given field.
func Full(field, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", protocol.Invalid(field, "is not an image reference: %.80q", ref)
	}
	if canonical, ok := named.(reference.Canonical); ok { // a digest overrides a tag
		return named.Name() + "@" + canonical.Digest().String(), nil
	}
	return reference.TagNameOnly(named).String(), nil
}
