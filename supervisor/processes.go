package supervisor

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// tick is the unit of processor times and of start times in /proc, on every Linux.
const tick = 10 * time.Millisecond

// statSize is enough for a line of /proc/PID/stat: at most 64 bytes of the name and 51 numbers of at most 20 digits.
const statSize = 2 << 10

// processes lists the processes in the container. The kernel may block a read of a process's arguments for as long as
// the process wishes, so only one call at a time reads them.
func (s *supervisor) processes() (*control.ProcessTable, *protocol.Error) {
	if !s.listing.CompareAndSwap(false, true) {
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"the sandbox's supervisor is still listing the processes: try again later")
	}
	defer s.listing.Store(false)
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "list the processes: %v", err)
	}
	names, _ := proc.Readdirnames(-1) // after an error, names has the entries that could be read
	proc.Close()
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != 1 && pid != s.trees.self {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	table := &control.ProcessTable{More: max(len(pids)-protocol.MaxProcesses, 0)}
	owners, groups := s.ownersOfGroups(), s.groupsOfProcesses()
	buf := make([]byte, statusSize)
	for _, pid := range pids[:len(pids)-table.More] {
		p := protocol.Process{PID: pid}
		var there bool
		if there, buf = readProcess(&p, buf); !there {
			continue
		}
		group, known := groups[pid]
		p.Exec, p.Primary = owners[group], known && group == s.primary.group
		table.Processes = append(table.Processes, p)
	}
	return table, nil
}

// ownersOfGroups returns the ids of the known execs by their groups.
func (s *supervisor) ownersOfGroups() map[uint32]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := make(map[uint32]string, len(s.execs))
	for id, e := range s.execs {
		owners[e.group] = id
	}
	return owners
}

// groupsOfProcesses returns the group by which each process is found.
func (s *supervisor) groupsOfProcesses() map[int]uint32 {
	groups := map[int]uint32{}
	for group, members := range s.trees.scan() {
		for _, pid := range members {
			groups[pid] = group
		}
	}
	return groups
}

// readProcess fills in what /proc says about a process. It returns false if the process has ended, and the buffer,
// which may have grown.
func readProcess(p *protocol.Process, buf []byte) (there bool, grown []byte) {
	status, buf := readStatus(strconv.Itoa(p.PID), buf)
	ids := bytes.Fields(statusLine(status, "\nUid:")) // real, effective, saved, of files
	if len(ids) < 2 {
		return false, buf
	}
	uid, _ := strconv.ParseUint(string(ids[1]), 10, 32) // the kernel writes a number
	p.UID = uint32(uid)
	dir := "/proc/" + strconv.Itoa(p.PID)
	stat := readStart(dir+"/stat", statSize)
	p.At = protocol.Duration(control.Clock())
	if !parseStat(p, stat) {
		return false, buf
	}
	p.Command = commandOf(readStart(dir+"/cmdline", protocol.MaxProcessCommand), stat)
	return true, buf
}

// parseStat reads a line of /proc/PID/stat. The name of the process, in parentheses, may contain anything, so the
// numbers begin after the last parenthesis.
func parseStat(p *protocol.Process, stat []byte) bool {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return false
	}
	words := bytes.Fields(stat[end+1:])
	const state, parent, user, system, threads, started, resident = 0, 1, 11, 12, 17, 19, 21
	if len(words) <= resident {
		return false
	}
	n := func(i int) int64 {
		v, _ := strconv.ParseInt(string(words[i]), 10, 64) // the kernel writes numbers
		return max(v, 0)
	}
	p.State, p.Parent, p.Threads = string(words[state]), int(n(parent)), int(n(threads))
	p.CPU = protocol.Duration(time.Duration(n(user)+n(system)) * tick)
	p.Started = protocol.Duration(time.Duration(n(started)) * tick)
	p.Memory = protocol.Bytes(n(resident) * int64(os.Getpagesize()))
	return true
}

// commandOf returns the arguments of a process or, if it has none, its name.
func commandOf(cmdline, stat []byte) string {
	text := string(bytes.TrimRight(cmdline, "\x00"))
	if text == "" {
		_, name, _ := bytes.Cut(stat, []byte("("))
		if end := bytes.LastIndexByte(name, ')'); end >= 0 {
			text = "[" + string(name[:end]) + "]"
		}
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), "\uFFFD")
	for len(text) > protocol.MaxProcessCommand {
		text = strings.ToValidUTF8(text[:protocol.MaxProcessCommand], "")
	}
	return text
}

// readStart reads at most size bytes of a file, with one call. It returns nil if the file cannot be read.
func readStart(name string, size int) []byte {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, size)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		return buf[:max(n, 0)]
	}
}
