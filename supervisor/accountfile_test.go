package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAccountFile_IsReadAgainAfterAChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "passwd")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &accountFile{path: path}
	expect := func(want string) {
		t.Helper()
		if got := f.read(); got != want {
			t.Fatalf("it reads %q, want %q", got, want)
		}
	}
	expect("")
	write(path, "agent:x:1:1::/:/bin/sh\n")
	expect("agent:x:1:1::/:/bin/sh\n")
	for begin := time.Now(); f.kept == nil; expect("agent:x:1:1::/:/bin/sh\n") {
		if time.Since(begin) > 10*settledAfter {
			t.Fatal("a file that does not change is never cached")
		}
		time.Sleep(10 * time.Millisecond)
	}

	write(path, "agent:x:2:1::/:/bin/sh\n") // the same size
	expect("agent:x:2:1::/:/bin/sh\n")
	if f.kept != nil {
		t.Fatal("a file that has just changed is cached: its next change may go unnoticed")
	}
	write(path+".new", "agent:x:3:1::/:/bin/sh\n")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	expect("agent:x:3:1::/:/bin/sh\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("")
}
