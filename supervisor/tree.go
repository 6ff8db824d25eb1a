package supervisor

import (
	"bytes"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// killBound is how long a tree may survive its first KILL before it is given up as not killable (a process in
// uninterruptible sleep). StopAll then waits no longer than this.
const killBound = 10 * time.Second

// trees finds processes by the group that they were started with.
type trees struct {
	base uint32 // the first group of this boot; every group from here on is one of ours
	self int

	// mains returns the commands that were started here. A privileged process can drop its group, as su does; it then
	// counts to the command whose session it is in, even as an orphan, or to its nearest ancestor that has a group or
	// was started here. nil: no process is privileged.
	mains func() map[int]uint32

	mu      sync.Mutex
	started time.Time // when the scan began that made members
	members map[uint32][]int
}

// find returns the living processes whose group matches.
func (t *trees) find(match func(group uint32) bool) []int {
	var pids []int
	for group, members := range t.scan() {
		if match(group) {
			pids = append(pids, members...)
		}
	}
	return pids
}

// scan returns a view of the process table that began after the call did. Callers that wait for each other share it:
// when hundreds of trees end at once, that takes a few scans, not hundreds.
func (t *trees) scan() map[uint32][]int {
	called := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started.After(called) {
		return t.members
	}
	t.started = time.Now()
	t.members = t.read()
	return t.members
}

func (t *trees) read() map[uint32][]int {
	members := map[uint32][]int{}
	groups, parents, sessions := map[int]uint32{}, map[int]int{}, map[int]uint32{}
	if t.mains != nil {
		groups = t.mains()
		maps.Copy(sessions, groups) // each of them leads its own session
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return members
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	buf := make([]byte, statusSize)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 || pid == t.self {
			continue
		}
		var status []byte
		status, buf = readStatus(name, buf)
		group, parent, alive := t.groupOf(status)
		switch {
		case !alive:
		case group != 0:
			members[group] = append(members[group], pid)
			groups[pid] = group
		case groups[pid] != 0:
			members[groups[pid]] = append(members[groups[pid]], pid)
		case t.mains == nil:
		case sessions[sessionOf(status)] != 0:
			groups[pid] = sessions[sessionOf(status)]
			members[groups[pid]] = append(members[groups[pid]], pid)
		default:
			parents[pid] = parent
		}
	}
	for pid := range parents {
		if group := kinOf(pid, groups, parents); group != 0 {
			members[group] = append(members[group], pid)
		}
	}
	return members
}

// kinOf returns the group of the nearest ancestor that has one, 0 if none has.
func kinOf(pid int, groups map[int]uint32, parents map[int]int) uint32 {
	for range len(parents) + 1 { // parents may change between two reads, so this could be a loop
		parent, known := parents[pid]
		if !known {
			return groups[pid]
		}
		pid = parent
	}
	return 0
}

// A status has room for all groups of a process: the kernel allows 65,536, of at most ten digits. They are sorted, so
// the group of an exec is the last.
const (
	statusSize    = 4 << 10
	maxStatusSize = 1 << 20
)

// readStatus reads the status of one process into buf, and returns it and the buffer, which may have grown. The status
// of an ended process is empty.
func readStatus(pid string, buf []byte) (status, grown []byte) {
	fd, err := unix.Open("/proc/"+pid+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, buf
	}
	defer unix.Close(fd)
	for size := 0; ; {
		if size == len(buf) {
			if size >= maxStatusSize {
				return buf[:size], buf
			}
			buf = append(buf, make([]byte, 3*size)...)
		}
		n, err := unix.Read(fd, buf[size:])
		if err == unix.EINTR {
			continue
		}
		if size += max(n, 0); n <= 0 || size < len(buf) { // the kernel fills all the room that there is
			return buf[:size], buf
		}
	}
}

// groupOf reads the exec's group, 0 if there is none, and the parent from a status. alive is false for an ended
// process.
func (t *trees) groupOf(status []byte) (group uint32, parent int, alive bool) {
	if len(status) == 0 {
		return 0, 0, false
	}
	parent, _ = strconv.Atoi(string(bytes.TrimSpace(statusLine(status, "\nPPid:"))))
	for _, field := range bytes.Fields(statusLine(status, "\nGroups:")) {
		if g, err := strconv.ParseUint(string(field), 10, 32); err == nil && uint32(g) >= t.base {
			return uint32(g), parent, !ended(status)
		}
	}
	return 0, parent, !ended(status)
}

// sessionOf reads the session from a status, in this process's own namespace; 0 if it is missing.
func sessionOf(status []byte) int {
	var session int
	if fields := bytes.Fields(statusLine(status, "\nNSsid:")); len(fields) > 0 {
		session, _ = strconv.Atoi(string(fields[0]))
	}
	return session
}

// ended reports whether a status is that of a zombie. A process whose first thread has ended, while others still run,
// differs from one only by its number of threads.
func ended(status []byte) bool {
	state := bytes.TrimSpace(statusLine(status, "\nState:"))
	if len(state) == 0 || (state[0] != 'Z' && state[0] != 'X') {
		return false
	}
	threads, _ := strconv.Atoi(string(bytes.TrimSpace(statusLine(status, "\nThreads:"))))
	return threads <= 1
}

func statusLine(status []byte, key string) []byte {
	_, rest, _ := bytes.Cut(status, []byte(key))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return line
}

// end ends the processes whose group matches: TERM to each, KILL to those that are left at the deadline, which may be
// moved forward meanwhile. hurry wakes it before its next poll. It returns false if a process survived KILL for
// killBound.
func (t *trees) end(match func(uint32) bool, deadline func() time.Time, hurry <-chan struct{}) bool {
	asked := map[int]bool{}
	for poll := time.Millisecond; ; poll = min(2*poll, 25*time.Millisecond) {
		left := time.Until(deadline())
		if left <= 0 {
			return t.kill(match)
		}
		pids := t.find(match)
		if len(pids) == 0 && len(t.find(match)) == 0 { // scan twice: a fork may escape a single scan
			return true
		}
		seen := make(map[int]bool, len(pids))
		for _, pid := range pids {
			seen[pid] = true
			if !asked[pid] {
				unix.Kill(pid, unix.SIGTERM)
				unix.Kill(pid, unix.SIGCONT) // a stopped process handles TERM only after it continues
			}
		}
		asked = seen
		select {
		case <-hurry:
			hurry = nil
		case <-time.After(min(poll, left)):
		}
	}
}

// kill sends KILL in rounds until nothing is left. A fork bomb loses: each round kills nearly all of it, and the
// sandbox's pids limit bounds what it forks meanwhile. (Stopping it before killing it takes longer.)
func (t *trees) kill(match func(uint32) bool) bool {
	begun := time.Now()
	for round := 0; time.Since(begun) < killBound; round++ {
		pids := t.find(match)
		if len(pids) == 0 {
			if pids = t.find(match); len(pids) == 0 {
				return true
			}
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(min(time.Duration(round+1)*200*time.Microsecond, 10*time.Millisecond))
	}
	return false
}
