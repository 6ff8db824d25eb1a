package protocol

import (
	"regexp"
	"strings"
)

// inURL matches the user information of a URL. It extends to the last @ before the path, because passwords may
// contain an @.
var inURL = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/]*@`)

// Redacted replaces the user information of every URL in the text with xxxxx. A user name without a password is
// replaced too, because it may be a token.
func Redacted(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}
	return inURL.ReplaceAllString(text, "${1}xxxxx@")
}
