package jetstream

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// headerOf reads a header that a client wrote, in whatever letter case: NATS keeps it as it is, and clients write it as
// HTTP does, or in small letters.
func headerOf(h map[string][]string, name string) string {
	if v := nats.Header(h).Get(name); v != "" {
		return v
	}
	for key, values := range h {
		if strings.EqualFold(key, name) && len(values) > 0 {
			return values[0]
		}
	}
	return ""
}
