package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is the ports from First to Last, which are 1 to 65535.
type PortRange struct{ First, Last int }

// ParsePortRange reads "FIRST-LAST", or one port. Error: invalid_argument with this field.
func ParsePortRange(field, text string) (PortRange, error) {
	first, last, many := strings.Cut(text, "-")
	if !many {
		last = first
	}
	from, wrong := strconv.ParseUint(first, 10, 16)
	to, alsoWrong := strconv.ParseUint(last, 10, 16)
	if wrong != nil || alsoWrong != nil || from == 0 || to < from {
		return PortRange{}, Invalid(field, "must be ports such as 20000-32767, got %.40q", text)
	}
	return PortRange{int(from), int(to)}, nil
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Len is how many ports a range has.
func (r PortRange) Len() int { return r.Last - r.First + 1 }

// Outside returns the index of the first port of a spec that is asked for by number and is not in the range, -1
// where there is none.
func (r PortRange) Outside(ports []Port) int {
	for i, p := range ports {
		if p.Host != 0 && (p.Host < r.First || p.Host > r.Last) {
			return i
		}
	}
	return -1
}
