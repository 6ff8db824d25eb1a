package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
)

// watchesFiles prints the files of the sandbox web that are written, until it is interrupted.
func watchesFiles(t *testing.T) {
	t.Helper()
	expect(t, "fs mkdir web /tmp/watched", 0, "")
	c := startClient(t, "fs", "watch", "web", "/tmp/watched")
	c.prints("watching")
	expectOf(t, []string{"exec", "web", "--", "sh", "-c", "echo x >/tmp/watched/new"}, 0, "")
	c.prints("created new")
	expect(t, "fs write web /tmp/watched/file", 0, "")
	for line := ""; !strings.HasSuffix(line, " file\n"); {
		var err error
		if line, err = c.stdout.ReadString('\n'); err != nil {
			t.Fatalf("no event of the written file: %v, %s", err, c.stderr.String())
		}
	}
	c.signal(syscall.SIGINT)
	if code := c.ends(signalled); code != 0 {
		t.Errorf("the watch ended with %d: %s", code, c.stderr.String())
	}
}

// copiesShowProgress copies a large file into the sandbox web and back, at a terminal.
func copiesShowProgress(t *testing.T) {
	t.Helper()
	const size = 192 << 20
	local := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(local, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(local, size); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"cp", local, "web:/var/large"}, {"cp", "web:/var/large", local + ".back"}} {
		screen, tty := terminal(t)
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 500}); err != nil {
			t.Fatal(err)
		}
		var shown eventually.Buffer
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			_, _ = io.Copy(&shown, screen) // fails when the terminal is closed
		}()
		code := run(t.Context(), args, strings.NewReader(""), io.Discard, tty)
		tty.Close()
		<-copied
		progress := regexp.MustCompile(`copying \S+large \[[█░]{24}\] \d\d?% of 192MiB \(\d+s\)`)
		if text := shown.String(); code != 0 || !progress.MatchString(text) || !strings.HasSuffix(text, "\r\x1b[K") {
			t.Errorf("%q ended with %d; the terminal shows %q", args, code, text)
		}
	}
	if info, err := os.Stat(local + ".back"); err != nil || info.Size() != size {
		t.Errorf("the copy of the copy: %+v, %v", info, err)
	}
}
