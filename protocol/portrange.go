package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is the ports from First to Last inclusive, within 1 to 65535.
type PortRange struct{ First, Last int }

// ParsePortRange parses "FIRST-LAST" or a single port. Errors: invalid_argument with the given field.
func ParsePortRange(field, text string) (PortRange, error) {
	first, last, many := strings.Cut(text, "-")
	if !many {
		last = first
	}
	from, wrong := strconv.ParseUint(first, 10, 16)
	to, alsoWrong := strconv.ParseUint(last, 10, 16)
	if wrong != nil || alsoWrong != nil || from == 0 || to < from {
		return PortRange{}, Invalid(field, "must be a port range such as 20000-32767, got %.40q", text)
	}
	return PortRange{int(from), int(to)}, nil
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Len returns the number of ports in the range.
func (r PortRange) Len() int { return r.Last - r.First + 1 }

// Outside returns the index of the first entry whose requested host port is outside the range, or -1. Ports
// that Docker chooses do not count.
func (r PortRange) Outside(ports []Port) int {
	for i, p := range ports {
		if p.Host != 0 && (p.Host < r.First || p.Host > r.Last) {
			return i
		}
	}
	return -1
}
