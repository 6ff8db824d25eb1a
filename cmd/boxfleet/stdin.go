package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// warnOfStdin says once that there is something on stdin, which the command does not get without --stdin.
// A terminal, and an empty file or pipe, say nothing.
func (p *program) warnOfStdin(given bool) {
	if given || p.stdinSaid || !waits(p.stdin) {
		return
	}
	p.stdinSaid = true
	p.note("there is something on stdin that the command does not get; give it with -i")
}

// waits says whether a file or a pipe has something that was not read.
func waits(stdin io.Reader) bool {
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
