package protocol

import (
	"testing"
	"time"
)

func TestProcessorTimeIsDividedByTheTimesOfTheReadings(t *testing.T) {
	at := func(cpu, at time.Duration) *ContainerUsage {
		return &ContainerUsage{Boot: "b1", CPU: Duration(cpu), At: Duration(at)}
	}
	other, failed := at(time.Second, time.Minute), at(0, 0)
	other.Boot, failed.Error = "b2", &Error{Code: Unavailable}
	for name, c := range map[string]struct {
		before, after *ContainerUsage
		cores         float64
		known         bool
	}{
		"half a core":        {at(time.Second, time.Minute), at(2*time.Second, time.Minute+2*time.Second), 0.5, true},
		"late second answer": {at(time.Second, time.Minute), at(2*time.Second, time.Minute+10*time.Second), 0.1, true},
		"no time passed":     {at(time.Second, time.Minute), at(2*time.Second, time.Minute), 0, false},
		"clock went back":    {at(time.Second, time.Minute), at(2*time.Second, time.Second), 0, false},
		"counter went back":  {at(time.Second, time.Minute), at(0, 2*time.Minute), 0, false},
		"another start":      {other, at(2*time.Second, 2*time.Minute), 0, false},
		"unknown before":     {failed, at(2*time.Second, 2*time.Minute), 0, false},
		"nothing before":     {nil, at(2*time.Second, 2*time.Minute), 0, false},
	} {
		if cores, known := c.after.CPUSince(c.before); cores != c.cores || known != c.known {
			t.Errorf("%s: %v cores, %v, want %v, %v", name, cores, known, c.cores, c.known)
		}
	}
	began := &Process{PID: 7, Started: Duration(time.Minute), At: Duration(time.Minute + 2*time.Second),
		CPU: Duration(time.Second)}
	if cores, known := began.CPUSince(nil); cores != 0.5 || !known {
		t.Errorf("a new process used %v cores, %v", cores, known)
	}
	reused := &Process{PID: 7, Started: Duration(time.Second), At: Duration(time.Minute), CPU: 0}
	if _, known := began.CPUSince(reused); known {
		t.Error("a process was compared with another one that had its pid")
	}
}
