package protocol

import (
	"regexp"
	"strings"
)

// inURL is what stands in a URL before its host: a name, a password, a token. It goes to the last @ before
// the path, as passwords may have an @ in them.
var inURL = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/]*@`)

// Redacted is a text without what gives access in the URLs in it. A user without a password may be a token,
// so it is left out too.
func Redacted(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}
	return inURL.ReplaceAllString(text, "${1}xxxxx@")
}
