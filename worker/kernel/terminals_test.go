package kernel

import "testing"

func TestTerminalsAreSharedAmongSandboxes(t *testing.T) {
	machine := map[string]uint64{"kernel.pty.max": 4096, "kernel.pty.reserve": 1024}
	get := func(name string) (uint64, bool) { n, ok := machine[name]; return n, ok }
	for slots, want := range map[int]int{1: mostTerminals, 12: mostTerminals, 100: 30, 1000: leastTerminals} {
		if got := terminals(slots, get); got != want {
			t.Errorf("with %d slots, each container has %d terminals, want %d", slots, got, want)
		}
	}
	if err := setTerminals(1, 10); err == nil {
		t.Error("setTerminals limited the host's own terminals")
	}
}
