package engines

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// remove ends all processes of an engine and removes its files.
func (e *Engine) remove() {
	e.tb.Helper()
	if e.PID != 0 {
		e.Continue()
		e.removeContainers()
		e.Stop()
	}
	e.killAll("a process", func(process) bool { return true })
	for _, point := range mountsBelow(e.dir) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			e.tb.Errorf("unmount %s: %v", point, err)
		}
	}
	if out, err := exec.Command("ip", "netns", "delete", e.namespace).CombinedOutput(); err != nil {
		e.tb.Errorf("ip netns delete %s: %v: %s", e.namespace, err, bytes.TrimSpace(out))
	}
	if e.tb.Failed() {
		e.tb.Logf("end of the log of engine %s:\n%s", e.Name, e.logTail())
	}
	if err := os.RemoveAll(e.dir); err != nil {
		e.tb.Error(err)
	}
}

// removeContainers removes the containers by force. The daemon can then stop without waiting for their grace periods.
func (e *Engine) removeContainers() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ids, err := e.Containers(ctx, "")
	if err != nil {
		return // the caller kills their processes
	}
	for _, id := range ids {
		// The caller kills the processes of a container that the engine could not remove.
		_, _ = e.request(ctx, "DELETE", "/containers/"+id+"?force=1&v=1", nil)
	}
}

// killAll kills the matching processes of the engine until no such process is left. A killed daemon leaves its shims
// and containers behind.
func (e *Engine) killAll(what string, match func(process) bool) {
	e.tb.Helper()
	deadline := time.After(startTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		rest := slices.DeleteFunc(e.processes(), func(p process) bool { return !match(p) })
		if len(rest) == 0 {
			return
		}
		for _, p := range rest {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // fails if the process has just ended
		}
		select {
		case <-tick.C:
		case <-deadline:
			e.tb.Errorf("engine %s: %s cannot be killed: %v", e.Name, what, rest)
			return
		}
	}
}

// process is a running process of an engine.
type process struct {
	pid     int
	program string // base name of its program
}

// processes returns the daemons that have the engine's directory in their arguments, and all processes below them.
func (e *Engine) processes() []process {
	entries, _ := os.ReadDir("/proc")
	children := map[int][]process{}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		parent, zombie := parentOf(pid)
		if zombie {
			continue
		}
		arguments, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		path, _, _ := bytes.Cut(arguments, []byte{0})
		p := process{pid: pid, program: filepath.Base(string(path))}
		children[parent] = append(children[parent], p)
		daemon := p.program == "dockerd" || strings.HasPrefix(p.program, "containerd")
		if daemon && bytes.Contains(arguments, []byte(e.dir+"/")) {
			found = append(found, p)
		}
	}
	for i := 0; i < len(found); i++ { // the loop appends to found
		for _, child := range children[found[i].pid] {
			if !slices.Contains(found, child) {
				found = append(found, child)
			}
		}
	}
	return found
}

// parentOf returns a process's parent and whether the process is a zombie.
func parentOf(pid int) (parent int, zombie bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, true
	}
	// The process name can contain anything, even parentheses, so parse the text after the last closing parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0, true
	}
	parent, _ = strconv.Atoi(fields[1])
	return parent, fields[0] == "Z" || fields[0] == "X"
}

// mountsBelow lists the mount points below dir, innermost first.
func mountsBelow(dir string) []string {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer table.Close()
	var points []string
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	slices.Reverse(points)
	return points
}

// Empty removes all images, containers, volumes and networks of the engine.
func (e *Engine) Empty() {
	e.tb.Helper()
	e.Stop()
	e.killAll("a process", func(process) bool { return true })
	for _, point := range mountsBelow(e.dir) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			e.tb.Errorf("unmount %s: %v", point, err)
		}
	}
	if err := os.RemoveAll(e.Data()); err != nil {
		e.tb.Fatal(err)
	}
}

// PowerCycle ends everything on the engine at once, as a power failure of its machine would. Only the engine's
// directory remains. The test then restarts the engine.
func (e *Engine) PowerCycle() {
	e.tb.Helper()
	e.Kill()
	e.killAll("a process", func(process) bool { return true })
	for _, point := range mountsBelow(e.dir) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			e.tb.Errorf("unmount %s: %v", point, err)
		}
	}
	run(e.tb, "ip", "netns", "delete", e.namespace) // this also removes its bridges and rules
	run(e.tb, "ip", "netns", "add", e.namespace)
	run(e.tb, "ip", "-n", e.namespace, "link", "set", "lo", "up")
	for _, name := range []string{"exec", "pid", "docker.sock"} {
		if err := os.RemoveAll(filepath.Join(e.dir, name)); err != nil {
			e.tb.Fatal(err)
		}
	}
}
