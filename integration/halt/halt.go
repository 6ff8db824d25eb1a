// Package halt pauses processes and waits until they have stopped. SIGSTOP alone is only a request: a thread of the
// process must run to receive the signal. On a busy machine the other threads keep running until then.
package halt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// within is the time limit for a process to stop.
const within = 10 * time.Second

// Process pauses a process and returns once all its threads have stopped. SIGCONT resumes the process.
func Process(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		still, err := StandsStill(pid)
		if err != nil || still {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d has not stopped within %s", pid, within)
		}
	}
}

// StandsStill reports whether a process and all its threads have stopped.
func StandsStill(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, errors.Join(fmt.Errorf("process %d is gone", pid), err)
	}
	for _, file := range threads {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) { // the thread has ended
			continue
		}
		if err != nil {
			return false, err
		}
		_, after, _ := bytes.Cut(data[bytes.LastIndexByte(data, ')'):], []byte(" "))
		if !bytes.HasPrefix(after, []byte("T")) {
			return false, nil
		}
	}
	return true, nil
}

// Self pauses this process. It returns only after SIGCONT.
func Self() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		panic(err) // SIGSTOP to an existing thread cannot fail
	}
}
