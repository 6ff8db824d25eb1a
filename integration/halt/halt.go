// Package halt stops processes, so that they stand still when it says so. SIGSTOP alone is a request: the
// thread that gets it has to run first, and on a busy machine the others go on until then.
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

// within is how long a process may take to stop.
const within = 10 * time.Second

// Process stops a process, and returns when each of its threads stands still. SIGCONT has it go on.
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

// StandsStill says whether a process was stopped, and each of its threads has.
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

// Self stops this process. The caller goes on when it gets SIGCONT, and not before.
func Self() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		panic(err) // this thread exists
	}
}
