package docker

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The first and last real-time signals that the C library leaves to programs.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// signalOf parses an image's stop signal as the Engine does. The text is a number, or a name with or without SIG.
// signalOf returns 0 for an empty or invalid text.
func signalOf(text string) int {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n, err := strconv.Atoi(name); err == nil {
		if n < 1 || n > lastRealTime {
			return 0
		}
		return n
	}
	for _, base := range []struct {
		name   string
		number int
	}{{"RTMIN", firstRealTime}, {"RTMAX", lastRealTime}} {
		offset, of := strings.CutPrefix(name, base.name)
		if !of {
			continue
		}
		n, err := strconv.Atoi(offset) // the offset has a sign, as in RTMIN+3
		if n += base.number; offset == "" || err == nil && n >= firstRealTime && n <= lastRealTime {
			return n
		}
		return 0
	}
	return int(unix.SignalNum("SIG" + name))
}
