package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Watchers makes sure that root still gets file watchers (inotify instances).
//
// The kernel counts them by user ID, and root in every sandbox is the host's root: one sandbox can take those of all
// others and of the host's own programs, and no limit of a container or a process prevents it. So once a second,
// Watchers tries to get one. If it fails, it kills the processes that hold them in the sandbox that holds the most.
type Watchers struct {
	// Containers returns the first process of each container, with the name of its sandbox.
	Containers func() map[int]string
	// Fence returns an error while the worker does not hold the host's lock. Then nothing is killed.
	Fence  func() error
	Logger *slog.Logger
}

const (
	watchersPeriod = time.Second

	// blamePart: a sandbox that holds less than a quarter of all file watchers is not to blame.
	blamePart = 4
)

// Run works until ctx ends. Without root it does nothing: root's file watchers are then not the worker's.
func (w Watchers) Run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	ticker := time.NewTicker(watchersPeriod)
	defer ticker.Stop()
	for warned := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if !watchersUsedUp() || w.Fence() != nil {
			continue
		}
		most, _ := sysctl("fs.inotify.max_user_instances")
		name, killed := relieve(w.Containers(), int(most)/blamePart)
		switch {
		case killed > 0:
			w.Logger.Warn("a sandbox used up the file watchers of all; killed the processes that held them",
				"sandbox", name, "processes", killed)
		case time.Since(warned) > time.Minute:
			warned = time.Now()
			w.Logger.Warn(
				"root has no file watchers left, and no sandbox holds many: raise fs.inotify.max_user_instances",
				"now",
				most,
			)
		}
	}
}

// watchersUsedUp reports whether root can get no more file watchers. It returns false if this process has merely run
// out of descriptors.
func watchersUsedUp() bool {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		unix.Close(fd)
		return false
	}
	spare, other := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if other != nil {
		return false
	}
	unix.Close(spare)
	return errors.Is(err, unix.EMFILE)
}

// holder is a process in a sandbox that has file watchers.
type holder struct {
	pid      int
	fd       int // of the process, so that another process with its PID is not killed instead
	watchers int
}

// relieve kills processes of the sandbox that holds the most file watchers, those with the most first, until it holds
// no more than least. If it does not hold more than that, nothing is killed. containers are the sandboxes' names by the
// first process of each container; first processes hold no file watchers and are never killed.
func relieve(containers map[int]string, least int) (name string, killed int) {
	held := findHolders(containers)
	total := map[string]int{}
	for sandbox, list := range held {
		for _, h := range list {
			defer unix.Close(h.fd)
			total[sandbox] += h.watchers
		}
		if total[sandbox] > total[name] {
			name = sandbox
		}
	}
	list := held[name]
	slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.watchers, a.watchers) })
	for _, h := range list {
		if total[name] <= least {
			break
		}
		if unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0) == nil {
			killed++
		}
		total[name] -= h.watchers
	}
	return name, killed
}

// findHolders returns, by sandbox, the processes in containers that hold file watchers of root.
func findHolders(containers map[int]string) map[string][]holder {
	inside := map[string]string{} // sandboxes by PID namespace
	for pid, name := range containers {
		if space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil {
			inside[space] = name
		}
	}
	found := map[string][]holder{}
	entries, _ := os.ReadDir("/proc") // on an error, as many as could be read
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || containers[pid] != "" {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		space, _ := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid"))
		name := inside[space]
		if name == "" || !mayHoldRoots(pid) {
			unix.Close(fd)
			continue
		}
		if n := watchersOf(pid); n > 0 {
			found[name] = append(found[name], holder{pid, fd, n})
			continue
		}
		unix.Close(fd)
	}
	return found
}

// mayHoldRoots reports whether the file watchers of a process may count as root's. The kernel counts them for the user
// that created them.
func mayHoldRoots(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && isOrWasRoot(string(status))
}

// isOrWasRoot reports, from the text of /proc/PID/status, whether a process is root or may have been. Because of
// no-new-privileges, only a process with CAP_SETUID in its bounding set can have changed its user.
func isOrWasRoot(status string) bool {
	field := func(title string) string {
		_, rest, _ := strings.Cut(status, "\n"+title+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	capabilities, err := strconv.ParseUint(field("CapBnd"), 16, 64)
	return strings.HasPrefix(field("Uid"), "0\t") || err != nil || capabilities&(1<<unix.CAP_SETUID) != 0
}

// watchersOf counts the file watchers that a process has open.
func watchersOf(pid int) (n int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if what, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && what == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
