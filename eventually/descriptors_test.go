package eventually

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnOpenDescriptorIsNamedUntilItIsClosed(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("this system does not list the descriptors of a process in /proc")
	}
	name := filepath.Join(t.TempDir(), "file")
	before := openDescriptors()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left := leftOpen(before, 0); len(left) != 1 || !strings.HasSuffix(left[0], name) {
		t.Errorf("the open descriptors are %q, want only that of %s", left, name)
	}
	time.AfterFunc(50*time.Millisecond, func() { f.Close() })
	if left := leftOpen(before, 10*time.Second); len(left) != 0 {
		t.Errorf("after the file was closed, the open descriptors are %q", left)
	}
}
