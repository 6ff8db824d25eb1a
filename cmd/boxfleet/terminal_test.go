package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestProgressFitsOnOneLineOfANarrowTerminal(t *testing.T) {
	screen, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 12}); err != nil {
		t.Fatal(err)
	}
	con := &console{stderr: tty}
	done := con.progress("creating the sandbox\x1b[2J: it waits for an image")
	var text string
	buf := make([]byte, 4096)
	for deadline := time.Now().Add(30 * time.Second); strings.Count(text, "\r") < 3; { // until two updates of the line
		if time.Now().After(deadline) {
			t.Fatalf("too little progress within 30 s: %q", text)
		}
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text += string(buf[:n])
	}
	done()
	updates := strings.Split(text, "\r\x1b[K")
	for _, update := range updates[1 : len(updates)-1] {
		if n := utf8.RuneCountInString(update); n > 11 || strings.Contains(update, "\x1b") {
			t.Errorf("an update has %d columns: %q", n, update)
		}
	}
}

func TestATerminalHasColoursUnlessTheEnvironmentForbidsThem(t *testing.T) {
	_, tty := terminal(t)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !coloured(tty) {
		t.Error("a terminal has no colours")
	}
	if !coloured(new(interrupts).guarded(tty)) {
		t.Error("a guarded terminal has no colours")
	}
	t.Setenv("TERM", "dumb")
	if coloured(tty) {
		t.Error("a terminal with TERM=dumb has colours")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if coloured(tty) {
		t.Error("a terminal has colours despite NO_COLOR")
	}
}
