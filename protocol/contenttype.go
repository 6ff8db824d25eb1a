package protocol

import (
	"bytes"
	"strings"
)

// ContentTypeOf is the form of a payload: [ContentJSON], [ContentMsgpack], or what the header says where that is
// neither. A charset or another parameter says nothing, and letter case does not either. Without the header, a payload
// that begins with "{" is JSON: no request or query in msgpack does.
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
