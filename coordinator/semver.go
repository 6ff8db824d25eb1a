package coordinator

import (
	"regexp"
	"strings"
)

var (
	// The pattern that semver.org suggests.
	semverPattern = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)
	notInSemver   = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// semver returns the build's version in the form that NATS services require: "v1.2.3" is 1.2.3, and a build without
// such a version, of a commit for example, is 0.0.0 with the build as its metadata.
func semver(build string) string {
	if version := strings.TrimPrefix(build, "v"); semverPattern.MatchString(version) {
		return version
	}
	if text := strings.Trim(notInSemver.ReplaceAllString(build, "-"), "-"); text != "" {
		return "0.0.0+" + text
	}
	return "0.0.0"
}
