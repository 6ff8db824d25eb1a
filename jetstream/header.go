package jetstream

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// headerOf reads a header by its name, in any letter case. NATS does not normalize the names of headers, and clients
// write the names as in HTTP or in lower case.
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
