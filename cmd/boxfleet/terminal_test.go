package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestTheProgressStaysOnOneLineOfANarrowTerminal(t *testing.T) {
	screen, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 12}); err != nil {
		t.Fatal(err)
	}
	con := &console{stderr: tty}
	done := con.progress("creating the sandbox\x1b[2J: it waits for an image")
	var text string
	buf := make([]byte, 4096)
	for deadline := time.Now().Add(30 * time.Second); strings.Count(text, "\r") < 3; { // a turn or two
		if time.Now().After(deadline) {
			t.Fatalf("no progress: %q", text)
		}
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text += string(buf[:n])
	}
	done()
	turns := strings.Split(text, "\r\x1b[K")
	for _, turn := range turns[1 : len(turns)-1] {
		if n := utf8.RuneCountInString(turn); n > 11 || strings.Contains(turn, "\x1b") {
			t.Errorf("a turn of %d columns: %q", n, turn)
		}
	}
}

func TestATerminalHasColoursUnlessSomebodyWantsNone(t *testing.T) {
	_, tty := terminal(t)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !coloured(tty) {
		t.Error("a terminal has none")
	}
	if !coloured(new(interrupts).guarded(tty)) {
		t.Error("a guarded terminal has none")
	}
	t.Setenv("TERM", "dumb")
	if coloured(tty) {
		t.Error("a dumb terminal has some")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if coloured(tty) {
		t.Error("NO_COLOR is not heeded")
	}
}
