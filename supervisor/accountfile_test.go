package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/eventually"
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
			t.Fatalf("reading the file: got %q, want %q", got, want)
		}
	}
	expect("")
	write(path, "agent:x:1:1::/:/bin/sh\n")
	expect("agent:x:1:1::/:/bin/sh\n")
	eventually.Holds(t, 10*settledAfter, "a file that does not change is cached", func() bool {
		expect("agent:x:1:1::/:/bin/sh\n")
		return f.kept != nil
	})

	write(path, "agent:x:2:1::/:/bin/sh\n") // a text of the same size
	expect("agent:x:2:1::/:/bin/sh\n")
	if f.kept != nil {
		t.Fatal("a file that has just changed is cached, so a further change could go unnoticed")
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
