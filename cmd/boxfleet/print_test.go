package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAProgressBarShowsThePartThatIsDone(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		full        int
		text        string
	}{{0, 0, 0, "0% of 0B"}, {0, 100, 0, "0% of 100B"}, {1 << 19, 1 << 20, 12, "50% of 1MiB"},
		{1 << 40, 1 << 40, 24, "100% of 1TiB"}} {
		got := bar(c.done, c.total)
		if strings.Count(got, "█") != c.full || strings.Count(got, "░") != 24-c.full || !strings.HasSuffix(got, c.text) {
			t.Errorf("%d of %d: %q", c.done, c.total, got)
		}
	}
}

// terminal opens a terminal. A program writes to tty, and the test reads the result from screen.
func terminal(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return screen, tty
}

func TestProgressIsShownOnATerminal(t *testing.T) {
	screen, tty := terminal(t)
	tell, done := (&console{stderr: tty}).progressing("reading")
	var shown []byte
	until := func(text string) {
		for buf := make([]byte, 1024); !bytes.Contains(shown, []byte(text)); {
			n, err := screen.Read(buf)
			if err != nil {
				t.Fatalf("%q is not shown after %q: %v", text, shown, err)
			}
			shown = append(shown, buf[:n]...)
		}
	}
	until("reading")
	tell("uploading")
	until("uploading")
	shown = nil
	done()
	fmt.Fprintln(tty, "end")
	until("\r\x1b[Kend") // the progress line is erased
	done()               // the second call does nothing
}

func TestProgressIsNotShownWithoutATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		_, done := (&console{stderr: &stderr}).progressing("reading")
		time.Sleep(time.Minute)
		done()
		if stderr.Len() > 0 {
			t.Errorf("without a terminal, stderr has %q", stderr.String())
		}
	})
}

func TestPingSaysThatMessagesWereRefused(t *testing.T) {
	for refused, want := range map[uint64]bool{0: false, 3: true} {
		var out bytes.Buffer
		printPing(&out, &protocol.Ping{Coordinator: "c1", Refused: refused}, 0)
		if strings.Contains(out.String(), "refused messages of the event log 3 times") != want {
			t.Errorf("with %d refused messages: %s", refused, out.String())
		}
	}
}
