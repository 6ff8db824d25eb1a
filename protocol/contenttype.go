package protocol

import (
	"bytes"
	"strings"
)

// ContentTypeOf returns the content type of a payload: [ContentJSON], [ContentMsgpack], or the header unchanged if it
// names something else. It ignores letter case and parameters such as a charset. Without a header, a payload that
// starts with "{" is JSON; no request or query in msgpack starts with this character.
func ContentTypeOf(header string, payload []byte) string {
	kind, _, _ := strings.Cut(header, ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); kind {
	case ContentJSON, ContentMsgpack:
		return kind
	case "":
		if bytes.HasPrefix(bytes.TrimLeft(payload, " \t\r\n"), []byte("{")) {
			return ContentJSON
		}
		return ContentMsgpack
	}
	return header
}
