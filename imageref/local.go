package imageref

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"

	"github.com/distribution/reference"
)

// component is what may stand between two slashes of a reference.
var component = regexp.MustCompile(`\A[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*\z`)

// maxLocal bounds the names that workers give; a reference has 255 characters before its tag at most.
const maxLocal = 200

// Local is the name that workers of a deployment give to an image which specs call full, a full
// reference: "boxfleet.local/default/imported/3b1f09a2c4d5e6f7/library/app:1". Kind, a lower-case word,
// says how it came. No other deployment, kind or reference has the same name.
func Local(deployment, kind, full string) string {
	sum := sha256.Sum256([]byte(deployment + "\n" + kind + "\n" + full))
	name := LocalRegistry + "/"
	if component.MatchString(deployment) {
		name += deployment + "/"
	}
	name += kind + "/" + hex.EncodeToString(sum[:8])
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return name + ":latest"
	}
	if path := reference.Path(named); len(name)+len(path) < maxLocal {
		name += "/" + path
	}
	if tagged, ok := named.(reference.Tagged); ok {
		return name + ":" + tagged.Tag()
	}
	return name + ":digest"
}
