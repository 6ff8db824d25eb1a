package worker

import "testing"

func TestADirectoryInMemoryIsNoticed(t *testing.T) {
	for dir, want := range map[string]bool{"/dev/shm": true, "/sys": false, "/does/not/exist": false} {
		if got := isInMemory(dir); got != want {
			t.Errorf("%s: %v", dir, got)
		}
	}
}
