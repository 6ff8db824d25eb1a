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

// Watchers ensures that root can create file watchers (inotify instances).
//
// The kernel limits file watchers by user ID, and to the kernel, root in each sandbox is the host's root. So one
// sandbox can use up the file watchers of all other sandboxes and of the host's own programs. No limit of a container
// or of a process prevents that. Therefore Watchers tries to create a file watcher once a second. If that fails, it
// kills processes in the sandbox that has the most file watchers.
type Watchers struct {
	// Containers returns the first process of each container, with the name of the container's sandbox.
	Containers func() map[int]string
	// Fence returns an error while the worker does not hold the host's lock. Watchers then kills nothing.
	Fence  func() error
	Logger *slog.Logger
}

const (
	watchersPeriod = time.Second

	// A sandbox loses file watchers only if it has more than the limit of file watchers divided by blamePart.
	blamePart = 4
)

// Run checks until ctx ends. It does nothing if the worker does not run as root, because it cannot then test whether
// root can create file watchers.
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
			w.Logger.Warn("a sandbox used up the file watchers of the whole machine; killed processes of the sandbox",
				"sandbox", name, "processes", killed)
		case time.Since(warned) > time.Minute:
			warned = time.Now()
			w.Logger.Warn(
				"root can create no more file watchers, and no sandbox has many: raise fs.inotify.max_user_instances",
				"now",
				most,
			)
		}
	}
}

// watchersUsedUp reports whether root can create no more file watchers. It returns false if the reason is only that
// this process has reached its limit of open files.
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

// holder is a process of a sandbox, with the number of its file watchers.
type holder struct {
	pid      int
	fd       int // a pidfd, so that no other process that gets the PID later is killed
	watchers int
}

// relieve finds the sandbox that has the most file watchers. If the sandbox has more than least file watchers, relieve
// kills processes of the sandbox until least are left. It begins with the processes that have the most file watchers.
// The parameter containers maps the first process of each container to the name of the sandbox. First processes have no
// file watchers, and are never killed.
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

// findHolders returns, by sandbox, the processes in the given containers that hold file watchers of root.
func findHolders(containers map[int]string) map[string][]holder {
	inside := map[string]string{} // names of sandboxes, by PID namespace
	for pid, name := range containers {
		if space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil {
			inside[space] = name
		}
	}
	found := map[string][]holder{}
	entries, _ := os.ReadDir("/proc") // after an error, entries has the processes that could be read
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

// isOrWasRoot reports, from the text of /proc/PID/status, whether a process runs as root or may have run as root
// before. Because of no-new-privileges, only a process with CAP_SETUID in its bounding set can have changed its user.
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
