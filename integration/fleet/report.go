package fleet

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// environment variable: directory for reports; default: a directory below the system's temporary directory
	reportsVariable = "BOXFLEET_TEST_REPORTS"
	reportEvents    = 30 // how many events of each sandbox a report contains
	printedLines    = 12 // how many lines of each process the test itself prints
)

// report writes a file about the fleet of a failed test: the end of each history, the log of each process, and the
// goroutine stacks of running processes. A process ends when it prints its stacks. The test itself prints the path of
// the file and the last lines of each process's log.
func (f *Fleet) report() {
	var all bytes.Buffer
	f.writeHistories(&all)
	f.logPending()
	for _, p := range f.processes {
		lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
		f.TB.Logf("end of the log of %s %s:\n%s", p.role, p.Name, strings.Join(lines[max(0, len(lines)-printedLines):], "\n"))
		if !p.Exited() {
			p.dump()
		}
		fmt.Fprintf(&all, "---- %s %s\n%s\n", p.role, p.Name, p.Log())
	}
	dir := os.Getenv(reportsVariable)
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "boxfleet-reports")
	}
	path := filepath.Join(dir, strings.ReplaceAll(f.TB.Name(), "/", "_")+".log")
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(path, all.Bytes(), 0o644)
	}
	if err != nil {
		f.TB.Logf("%v\n%s", err, all.String())
		return
	}
	f.TB.Logf("the full report is in %s", path)
}

func (f *Fleet) writeHistories(into *bytes.Buffer) {
	if f.Conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	newest := map[string][]string{}
	err := f.Conn.FollowEvents(ctx, 1, func(b *protocol.Batch) {
		for _, e := range b.Events {
			line := fmt.Sprintf("%4d %s %s %s", e.Sequence, e.Time.Format("15:04:05.000"), e.Kind, e.Writer)
			if e.Exec != nil {
				line += " " + e.Exec.ID
			}
			lines := append(newest[b.Sandbox], line)
			newest[b.Sandbox] = lines[max(0, len(lines)-reportEvents):]
		}
	}, cancel)
	fmt.Fprintf(into, "---- end of the histories (%v)\n", err)
	for _, sandbox := range slices.Sorted(maps.Keys(newest)) {
		fmt.Fprintf(into, "%s\n    %s\n", sandbox, strings.Join(newest[sandbox], "\n    "))
	}
}

// logPending logs why each pending sandbox is not ready, as far as the coordinator knows.
func (f *Fleet) logPending() {
	if f.Client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for s, err := range f.Client.List(ctx) {
		if err != nil {
			f.TB.Logf("list the sandboxes for the report: %v", err)
			return
		}
		if s.Info().State != protocol.StatePending {
			continue
		}
		explanation, err := s.Explain(ctx)
		if err != nil {
			f.TB.Logf("%s is pending; no explanation: %v", s.ID(), err)
			continue
		}
		f.TB.Logf("%s is pending: %s %+v", s.ID(), explanation.Waiting, explanation.Hosts)
	}
}
