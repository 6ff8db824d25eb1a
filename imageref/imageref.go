// Package imageref reads image references as Docker does. It is apart from protocol, because the
// library behind it costs every process that links it a megabyte of patterns, and each sandbox has
// a supervisor that links protocol.
package imageref

import (
	"github.com/distribution/reference"

	"github.com/boxfleet/boxfleet/protocol"
)

// ByDigest is a full reference with a digest in place of its tag.
func ByDigest(full, digest string) (string, error) {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return "", err
	}
	return Full("", named.Name()+"@"+digest)
}

// Full is the full form of an image reference, with its registry, and the tag where one is
// missing: "docker.io/library/busybox:latest". It fails with invalid_argument, naming the field.
func Full(field, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", protocol.Invalid(field, "is not an image reference: %.80q", ref)
	}
	if canonical, ok := named.(reference.Canonical); ok { // beside a digest a tag says nothing
		return named.Name() + "@" + canonical.Digest().String(), nil
	}
	return reference.TagNameOnly(named).String(), nil
}
