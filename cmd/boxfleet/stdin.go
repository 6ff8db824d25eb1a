package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// warnOfStdin warns once if stdin has data that the command does not get without --stdin. It does not warn about a
// terminal or an empty file or pipe.
func (p *program) warnOfStdin(given bool) {
	if given || p.stdinSaid || !hasData(p.stdin) {
		return
	}
	p.stdinSaid = true
	p.note("stdin has data that is not passed to the command; use -i to pass it")
}

// hasData reports whether a file or pipe has unread data.
func hasData(stdin io.Reader) bool {
	f, ok := stdin.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	switch {
	case info.Mode().IsRegular():
		at, err := f.Seek(0, io.SeekCurrent)
		return err == nil && at < info.Size()
	case info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0:
		n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
		return err == nil && n > 0
	}
	return false
}
