package jetstream

import (
	"bytes"
	"strings"

	"github.com/nats-io/nats.go"
)

// A server adds headers of its own to the stored messages that it sends, behind the headers of the publisher. The
// publisher controls the raw bytes of its own headers, and the NATS client reads them less strictly than the server:
// the client ends a line at a single LF, and stops at the first blank line. So a publisher can hide the server's
// headers from the client, show false ones, or show an expected sequence that the server never checked. The functions
// of this file tell which headers can be believed.

// plainHeaders is the largest number of headers that a believed message can have. Boxfleet's own messages have at most
// 16, including the headers that the server adds.
const plainHeaders = 24

// plain reports whether the client has read all headers that the server sent, each of them once. The headers that the
// server adds are then true. If the client has not read some headers, the raw headers are longer than the headers in m.
// A publisher can write each of its headers at most two bytes shorter than plain expects: without the space, and
// without the CR at the end of the line. So plainHeaders headers save fewer bytes than the server's own headers take.
func plain(m *nats.Msg) bool {
	length, ok := headerLength(m.Header)
	return ok && length+len("NATS/1.0\r\n") == rawHeaders(m)
}

// status returns the status with which a server answers instead of a message, or "" if m is a message. A stored message
// may have a header with the name Status too, but no inline status, because the server removes an inline status when it
// stores a message.
func status(m *nats.Msg) string {
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	if len(code) != 3 || len(m.Data) > 0 {
		return ""
	}
	length, ok := headerLength(m.Header)
	if !ok {
		return ""
	}
	length -= len("Status: \r\n") + len(code)
	inline := len("NATS/1.0 \r\n") + len(code)
	if text != "" {
		length -= len("Description: \r\n") + len(text)
		inline += len(" ") + len(text)
	}
	if rawHeaders(m) != length+inline {
		return ""
	}
	return code
}

// rawHeaders returns the length of the headers as they were received.
func rawHeaders(m *nats.Msg) int { return m.Size() - len(m.Subject) - len(m.Reply) - len(m.Data) }

// headerLength returns the length of headers and the blank line after them, as a server writes them. ok is false if a
// header has several values, or if there are more than plainHeaders.
func headerLength(h nats.Header) (length int, ok bool) {
	for name, values := range h {
		if len(values) != 1 {
			return 0, false
		}
		length += len(name) + len(": ") + len(values[0]) + len("\r\n")
	}
	return length + len("\r\n"), len(h) > 0 && len(h) <= plainHeaders
}

// headersOf reads raw headers as the server does: each line ends with CRLF, and blank lines end nothing. It ignores
// lines that are not headers.
func headersOf(raw []byte) nats.Header {
	h := nats.Header{}
	lines := bytes.Split(raw, []byte("\r\n"))
	for _, line := range lines[1:] {
		if name, value, found := strings.Cut(string(line), ":"); found && name != "" {
			h[name] = append(h[name], strings.TrimSpace(value))
		}
	}
	return h
}
