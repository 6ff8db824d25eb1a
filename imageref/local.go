package imageref

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"

	"github.com/distribution/reference"
)

// component matches one path component of a reference.
var component = regexp.MustCompile(`\A[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*\z`)

// maxLocal limits the length of local names. It is less than 255, the most that a reference may have before its tag.
const maxLocal = 200

// Local returns the name under which a deployment's workers store an image, such as
// "boxfleet.local/default/imported/3b1f09a2c4d5e6f7/library/app:1". The parameter full is the image's full reference,
// and kind is a lower-case word for how the image arrived. Names differ for each deployment, kind and reference.
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
