package cgroup

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Where the kernel shows processes and control groups.
const (
	procDir   = "/proc"
	groupsDir = "/sys/fs/cgroup"
)

// mostRead is the largest number of bytes that is read from one file.
const mostRead = 64 << 10

// Group are the control groups of one container.
type Group struct {
	proc      string
	path      string            // path of the group of version 2; empty: version 1
	of        map[string]string // the directory of each controller of version 1
	blkioRoot string            // directory of the root group of the controller blkio of version 1
	text      string            // the groups as the kernel lists them
}

// Counters say what a container has used. A limit of 0 means that there is no limit.
type Counters struct {
	CPU         time.Duration // time that all processes spent on all cores
	Memory      int64         // bytes in use, without files that the kernel can drop at once
	MemoryLimit int64
	PIDs        int64 // processes and threads
	PIDsLimit   int64
	DiskKnown   bool  // the kernel tells the next two
	Read        int64 // bytes read from and written to disks
	Written     int64
}

// Of returns the control groups of a process. Error: not_found if the process does not exist.
func Of(pid int) (*Group, error) { return of(procDir, groupsDir, pid) }

func of(proc, root string, pid int) (*Group, error) {
	data, err := readFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, unreadable(err, "read the control groups of a container")
	}
	g := &Group{proc: proc, of: map[string]string{}, text: string(data)}
	unified := ""
	for line := range strings.Lines(g.text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[1] == "" {
			unified = parts[2]
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			g.of[controller] = filepath.Join(root, parts[1], path.Clean("/"+parts[2]))
			if _, err := os.Stat(g.of[controller]); err != nil { // some systems mount each controller by itself
				g.of[controller] = filepath.Join(root, controller, path.Clean("/"+parts[2]))
			}
			if controller == "blkio" {
				g.blkioRoot = strings.TrimSuffix(g.of[controller], path.Clean("/"+parts[2]))
			}
		}
	}
	if _, ok := g.of["cpuacct"]; !ok {
		g.path = filepath.Join(root, path.Clean("/"+unified))
	}
	return g, nil
}

// Equal reports whether two processes are in the same control groups.
func (g *Group) Equal(other *Group) bool { return g.text == other.text }

// Read reads the counters. Error: not_found if the container has ended.
func (g *Group) Read() (Counters, error) {
	if g.path != "" {
		return g.readV2()
	}
	return g.readV1()
}

func (g *Group) readV2() (c Counters, err error) {
	stat, err := readFile(filepath.Join(g.path, "cpu.stat"))
	if err != nil {
		return c, unreadable(err, "read the counters of a container")
	}
	c.CPU = time.Duration(field(stat, "usage_usec")) * time.Microsecond
	c.Memory = number(g.path, "memory.current")
	memory, _ := readFile(filepath.Join(g.path, "memory.stat"))
	c.Memory = max(c.Memory-field(memory, "inactive_file"), 0)
	c.MemoryLimit = number(g.path, "memory.max")
	c.PIDs, c.PIDsLimit = number(g.path, "pids.current"), number(g.path, "pids.max")
	io, err := readFile(filepath.Join(g.path, "io.stat"))
	if c.DiskKnown = err == nil; !c.DiskKnown { // the controller is off
		c.Read, c.Written, c.DiskKnown = g.ioOfProcesses()
	}
	for word := range bytes.FieldsSeq(io) {
		if n, ok := bytes.CutPrefix(word, []byte("rbytes=")); ok {
			c.Read += parse(n)
		} else if n, ok := bytes.CutPrefix(word, []byte("wbytes=")); ok {
			c.Written += parse(n)
		}
	}
	return c, nil
}

func (g *Group) readV1() (c Counters, err error) {
	used, err := readFile(filepath.Join(g.of["cpuacct"], "cpuacct.usage"))
	if err != nil {
		return c, unreadable(err, "read the counters of a container")
	}
	c.CPU = time.Duration(parse(used))
	memory := g.of["memory"]
	c.Memory = number(memory, "memory.usage_in_bytes")
	stat, _ := readFile(filepath.Join(memory, "memory.stat"))
	c.Memory = max(c.Memory-field(stat, "total_inactive_file"), 0)
	if c.MemoryLimit = number(memory, "memory.limit_in_bytes"); c.MemoryLimit >= noLimit {
		c.MemoryLimit = 0
	}
	c.PIDs, c.PIDsLimit = number(g.of["pids"], "pids.current"), number(g.of["pids"], "pids.max")
	if !g.countsIO() {
		c.Read, c.Written, c.DiskKnown = g.ioOfProcesses()
		return c, nil
	}
	io, err := readFile(filepath.Join(g.of["blkio"], ioCounters))
	c.DiskKnown = err == nil
	for line := range bytes.Lines(io) { // 8:0 Read 4096
		switch words := bytes.Fields(line); {
		case len(words) != 3:
		case string(words[1]) == "Read":
			c.Read += parse(words[2])
		case string(words[1]) == "Write":
			c.Written += parse(words[2])
		}
	}
	return c, nil
}

// If there is no limit of memory, version 1 shows a limit of at least noLimit.
const noLimit = 1 << 60

// number reads a file with one number. It returns 0 for "max", and if the file cannot be read: a host may lack a
// controller.
func number(dir, name string) int64 {
	data, err := readFile(filepath.Join(dir, name))
	if err != nil || dir == "" {
		return 0
	}
	return parse(data)
}

// field returns the number after a name at the start of a line.
func field(data []byte, name string) int64 {
	for line := range bytes.Lines(data) {
		if words := bytes.Fields(line); len(words) == 2 && string(words[0]) == name {
			return parse(words[1])
		}
	}
	return 0
}

func parse(text []byte) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// unreadable translates an error of the kernel's files.
func unreadable(err error, doing string) *protocol.Error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return protocol.Errorf(protocol.NotFound, "", "%s: it has ended", doing)
	}
	return hosterr.Wrap(err, "%s", doing)
}

// readFile reads the start of a file, at most mostRead bytes.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostRead))
}
