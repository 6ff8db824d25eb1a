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

// killBound limits how long kill keeps trying. A process in uninterruptible sleep does not end after KILL.
const killBound = 10 * time.Second

// trees finds and ends processes by the group with which they were started.
type trees struct {
	base uint32 // the first group id of this boot; only the supervisor assigns this id and higher ids
	self int

	// mains returns the main processes of commands, with their groups. It is nil unless the supervisor is privileged.
	//
	// A privileged process can drop its group, as su does. The process then belongs to the command that its session
	// belongs to, even if the process is an orphan. If its session belongs to no command, the process belongs to the same
	// command as its nearest ancestor that has a group or is a main process.
	mains func() map[int]uint32

	mu      sync.Mutex
	started time.Time // when the scan that found members began
	members map[uint32][]int
}

// find returns the living processes with a group that matches.
func (t *trees) find(match func(group uint32) bool) []int {
	var pids []int
	for group, members := range t.scan() {
		if match(group) {
			pids = append(pids, members...)
		}
	}
	return pids
}

// scan returns the processes of each group, from a process table that is read after the call has begun. Calls that wait
// at the same time share one reading: when hundreds of trees end at once, the table is read only a few times.
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
		maps.Copy(sessions, groups) // each main process leads its own session
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return members
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // after an error, names has the entries that could be read
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

// kinOf returns the group of the nearest ancestor that has a group, or 0 if no ancestor has a group.
func kinOf(pid int, groups map[int]uint32, parents map[int]int) uint32 {
	for range len(parents) + 1 { // parents may have changed while they were read, so they may form a circle
		parent, known := parents[pid]
		if !known {
			return groups[pid]
		}
		pid = parent
	}
	return 0
}

// maxStatusSize is enough for all groups of a process: the kernel allows 65,536 groups with at most ten digits each.
// The groups in a status are sorted, so the group of an exec is the last one.
const (
	statusSize    = 4 << 10
	maxStatusSize = 1 << 20
)

// readStatus reads the status of one process into buf. It returns the status and the buffer, which may have grown. The
// status of a process that no longer exists is empty.
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
		if size += max(n, 0); n <= 0 || size < len(buf) { // room left in the buffer means that the status was read to its end
			return buf[:size], buf
		}
	}
}

// groupOf reads a process's exec group and parent from the process's status. The group is 0 if the process has no group
// of an exec. alive is false if the process has ended.
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

// sessionOf reads the session id, in this process's own namespace, from a status. It returns 0 if the status has no
// session id.
func sessionOf(status []byte) int {
	var session int
	if fields := bytes.Fields(statusLine(status, "\nNSsid:")); len(fields) > 0 {
		session, _ = strconv.Atoi(string(fields[0]))
	}
	return session
}

// ended reports whether a status is the status of a zombie. If the first thread of a process has ended while other
// threads still run, the process also has the state of a zombie, but more than one thread.
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

// end ends the processes with a group that matches. It sends TERM to each process, and sends KILL to the processes that
// are left at the deadline. It calls deadline again and again, because the deadline may become earlier. When the
// channel hurry is closed, end checks the processes at once. end returns false if processes are left after it has sent
// KILL for killBound.
func (t *trees) end(match func(uint32) bool, deadline func() time.Time, hurry <-chan struct{}) bool {
	asked := map[int]bool{}
	for poll := time.Millisecond; ; poll = min(2*poll, 25*time.Millisecond) {
		left := time.Until(deadline())
		if left <= 0 {
			return t.kill(match)
		}
		pids := t.find(match)
		if len(pids) == 0 && len(t.find(match)) == 0 { // a single scan may miss a process that forks meanwhile
			return true
		}
		seen := make(map[int]bool, len(pids))
		for _, pid := range pids {
			seen[pid] = true
			if !asked[pid] {
				_ = unix.Kill(pid, unix.SIGTERM) // the process may just have ended
				_ = unix.Kill(pid, unix.SIGCONT) // a stopped process handles TERM only after it continues
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

// kill sends KILL, in rounds, to the processes with a group that matches, until no such process is left. Rounds also
// end a fork bomb: each round kills nearly all of its processes, and the sandbox's process limit bounds the number of
// new processes. Stopping the processes before killing them would take longer.
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
			_ = unix.Kill(pid, unix.SIGKILL) // the process may just have ended
		}
		time.Sleep(min(time.Duration(round+1)*200*time.Microsecond, 10*time.Millisecond))
	}
	return false
}
