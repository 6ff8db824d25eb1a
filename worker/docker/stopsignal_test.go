package docker

import "testing"

func TestStopSignalsMeanTheSameAsToTheEngine(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "SIGQUIT": 3, "quit": 3, "3": 3, "SIGINT": 2, "KILL": 9, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMAX-2": 62,
		"RTMAX": 64, "64": 64,
		"SIGNOTHING": 0, "0": 0, "-1": 0, "65": 0, "RTMIN+31": 0, "RTMAX+1": 0, "RTMINX": 0,
	} {
		if got := signalOf(text); got != want {
			t.Errorf("stop signal %q: got %d, want %d", text, got, want)
		}
	}
}
