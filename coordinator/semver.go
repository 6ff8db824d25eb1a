package coordinator

import (
	"regexp"
	"strings"
)

var (
	// semverPattern is the pattern that semver.org suggests.
	semverPattern = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
		`(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?` +
		`(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)
	notInSemver = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// semver returns the build's version in the form that NATS services require. For "v1.2.3" it is 1.2.3. A build without
// such a version, for example one named by a commit, is 0.0.0 with the build as metadata.
func semver(build string) string {
	if version := strings.TrimPrefix(build, "v"); semverPattern.MatchString(version) {
		return version
	}
	if text := strings.Trim(notInSemver.ReplaceAllString(build, "-"), "-"); text != "" {
		return "0.0.0+" + text
	}
	return "0.0.0"
}
