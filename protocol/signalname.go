package protocol

import (
	"strconv"
	"strings"
)

// The first and last real-time signals that the C library leaves to programs.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// lastStandard is the number of the last signal that is not a real-time signal.
const lastStandard = 31

// signalNames are the names of the standard signals on x86 and ARM, by number, without SIG. This package also runs in
// clients whose system numbers its signals in another way.
var signalNames = [lastStandard + 1]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
	12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP",
	21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR",
	31: "SYS",
}

// otherSignalNames are further names of some signals.
var otherSignalNames = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

// ParseSignal returns the number of a signal. The text is a number from 1 to 64 except 32 and 33, a name such as INT,
// or a real-time signal such as RTMIN+3. Names may have the prefix SIG and may be in lower case. Error:
// invalid_argument for the given field.
func ParseSignal(field, text string) (int, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n, err := strconv.Atoi(text); err == nil {
		if !isSignal(n) {
			return 0, Invalid(field, "must be a number from 1 to %d or from %d to %d, or a name such as INT, got %.40q",
				lastStandard, firstRealTime, lastRealTime, text)
		}
		return n, nil
	}
	for n, known := range signalNames {
		if known != "" && known == name {
			return n, nil
		}
	}
	if n, ok := otherSignalNames[name]; ok {
		return n, nil
	}
	if n, ok := realTimeSignal(name, "RTMIN", firstRealTime, '+'); ok {
		return n, nil
	}
	if n, ok := realTimeSignal(name, "RTMAX", lastRealTime, '-'); ok {
		return n, nil
	}
	return 0, Invalid(field, "must be the name or the number of a signal, such as INT, SIGTERM or 10, got %.40q", text)
}

// realTimeSignal parses a base with an offset, such as RTMIN+3.
func realTimeSignal(name, base string, first int, sign byte) (n int, ok bool) {
	offset, ok := strings.CutPrefix(name, base)
	switch {
	case !ok:
		return 0, false
	case offset == "":
		return first, true
	case offset[0] != sign:
		return 0, false
	}
	by, err := strconv.Atoi(offset[1:])
	if err != nil || offset[1] < '0' || offset[1] > '9' {
		return 0, false
	}
	if sign == '-' {
		by = -by
	}
	n = first + by
	return n, n >= firstRealTime && n <= lastRealTime
}

func isSignal(n int) bool {
	return n >= 1 && n <= lastStandard || n >= firstRealTime && n <= lastRealTime
}

// SignalName returns the name of a signal, such as SIGINT or SIGRTMIN+3, or its number if it has no name.
func SignalName(n int) string {
	switch {
	case n >= 1 && n <= lastStandard:
		return "SIG" + signalNames[n]
	case n == firstRealTime:
		return "SIGRTMIN"
	case n > firstRealTime && n <= lastRealTime:
		return "SIGRTMIN+" + strconv.Itoa(n-firstRealTime)
	}
	return strconv.Itoa(n)
}
