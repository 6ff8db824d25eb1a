package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel counts file watchers (inotify) by user id, and root of all sandboxes is the host's root for it: one
// sandbox can use up what all others and the host's own programs have, and no limit of a container or of a process
// bounds it. So the worker tries each second whether root still gets one. Where not, the sandbox that holds the most
// loses the processes that hold them.
const watchersPeriod = time.Second

// A sandbox that holds less than this share of all is not to blame.
const blameShare = 4

// keepWatchers looks after the file watchers of root, until ctx ends.
func (w *worker) keepWatchers(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil // root's are not its own
	}
	ticker := time.NewTicker(watchersPeriod)
	defer ticker.Stop()
	for said := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if !watchersUsedUp() || w.fence() != nil {
			continue
		}
		most, _ := sysctl("fs.inotify.max_user_instances")
		name, ended := relieve(w.firstProcesses(), int(most)/blameShare)
		switch {
		case ended > 0:
			w.log.Warn("a sandbox used up the file watchers of all; its processes that held them are ended", "sandbox", name, "processes", ended)
		case time.Since(said) > time.Minute:
			said = time.Now()
			w.log.Warn("root has no file watchers left, and no sandbox holds many: raise fs.inotify.max_user_instances", "now", most)
		}
	}
}

// watchersUsedUp says whether root gets no file watcher any more. A worker that has no descriptor left does not
// know.
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

// firstProcesses are the first processes of the containers that the worker is connected to, by whose they are.
func (w *worker) firstProcesses() map[int]string {
	w.mu.Lock()
	sandboxes := make([]*sandbox, 0, len(w.sandboxes))
	for _, s := range w.sandboxes {
		sandboxes = append(sandboxes, s)
	}
	w.mu.Unlock()
	found := map[int]string{}
	for _, s := range sandboxes {
		s.mu.Lock()
		name := s.key.Tenant + "/" + s.key.ID
		if s.attached != nil {
			found[s.attached.pid] = name
		}
		for _, v := range s.services {
			if v.attached != nil {
				found[v.attached.pid] = name
			}
		}
		s.mu.Unlock()
	}
	return found
}

// holder is a process in a sandbox that has file watchers.
type holder struct{ pid, fd, watchers int } // fd: holds the process, so that nobody else with its number is meant

// relieve ends the processes of the sandbox that holds the most file watchers, those with the most first, until it
// holds no more than least. It ends nothing where none holds more. containers are names by first process, which is
// never ended: it has none.
func relieve(containers map[int]string, least int) (name string, ended int) {
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
			ended++
		}
		total[name] -= h.watchers
	}
	return name, ended
}

// findHolders finds, by sandbox, what has file watchers of root in containers.
func findHolders(containers map[int]string) map[string][]holder {
	inside := map[string]string{} // sandboxes by namespace of processes
	for pid, name := range containers {
		if space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil {
			inside[space] = name
		}
	}
	found := map[string][]holder{}
	entries, _ := os.ReadDir("/proc") // what is not readable holds nothing that could be ended
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

// mayHoldRoots says whether file watchers of a process may be root's. The kernel counts them for who took them.
func mayHoldRoots(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && isOrWasRoot(string(status))
}

// isOrWasRoot reads from a process's status whether it is root, or may have been: with no-new-privileges only a process that
// could have had a capability for it becomes another user.
func isOrWasRoot(status string) bool {
	after := func(title string) string {
		_, rest, _ := strings.Cut(status, "\n"+title+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	capabilities, err := strconv.ParseUint(after("CapBnd"), 16, 64)
	return strings.HasPrefix(after("Uid"), "0\t") || err != nil || capabilities&(1<<unix.CAP_SETUID) != 0
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
