package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

const (
	deletedWithin = 40 * time.Second // time limit for deleting all sandboxes at the end of a test
	emptyWithin   = 20 * time.Second // time limit for cleaning up: a worker inspects its host every 15 s
	deletesAtOnce = 8
)

// MayLeave skips the check that the fleet leaves nothing behind when the test ends, and prints the reason. Only a test
// that permanently breaks something may call it, and only if Boxfleet cannot clean up without the broken part.
func (f *Fleet) MayLeave(reason string) { f.mayLeave = reason }

// remains finds and removes what a fleet leaves behind when its test ends.
type remains struct{ *Fleet }

// checkLeaks makes Boxfleet delete all remaining sandboxes. It fails the test if anything of the fleet is left
// afterwards. If a delete needs a process that the test has ended, checkLeaks restarts the process.
func (f remains) checkLeaks() {
	f.TB.Helper()
	if f.mayLeave != "" {
		f.TB.Logf("leaks are not checked: %s", f.mayLeave)
	}
	if f.mayLeave != "" || f.TB.Failed() || f.Conn == nil {
		return
	}
	began := time.Now()
	before := f.noteTraces()
	if open := f.undeleted(); len(open) > 0 {
		f.revive()
		f.deleteAll(open)
	}
	deleted := time.Now()
	left := f.left(before)
	late := left
	if len(left) > 0 {
		f.revive()
	}
	for len(left) > 0 && time.Since(deleted) < f.patience {
		time.Sleep(50 * time.Millisecond)
		left = f.left(before)
	}
	took := time.Since(deleted).Round(time.Millisecond)
	for _, p := range f.processes {
		p.Kill()
	}
	left = append(left, f.leftRunning()...)
	if len(left) > 0 {
		f.TB.Errorf("%s after everything was deleted, this is left:\n    %s", took, strings.Join(left, "\n    "))
		return
	}
	if len(late) > 0 {
		f.TB.Logf("these objects were removed only after the last delete: %q", late)
	}
	f.TB.Logf("nothing is left: deleting took %s, cleaning up %s more",
		deleted.Sub(began).Round(time.Millisecond), took)
}

// undeleted lists the sandboxes that are not deleted, by tenant.
func (f remains) undeleted() map[string][]string {
	f.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	states := map[[2]string]protocol.SandboxState{}
	caughtUp := false
	err := f.Conn.FollowEvents(ctx, 1, func(b *protocol.Batch) {
		states[[2]string{b.Tenant, b.Sandbox}] = b.Events[len(b.Events)-1].State
	}, func() { caughtUp = true; cancel() })
	if !caughtUp {
		f.TB.Fatalf("list the sandboxes: %v", err)
	}
	open := map[string][]string{}
	for name, state := range states {
		if state != protocol.StateDeleted {
			open[name[0]] = append(open[name[0]], name[1])
		}
	}
	return open
}

// revive starts a coordinator if no coordinator is running, and a worker on each engine that a worker used.
func (f remains) revive() {
	f.TB.Helper()
	for _, p := range f.processes {
		p.Signal(syscall.SIGCONT) // the test may have paused the process
	}
	if len(f.Processes("coordinator")) == 0 {
		f.Coordinator("last", Role{Timing: f.options.Timing})
	}
	newest := map[string]*Process{}
	for _, p := range f.processes {
		if p.role == "worker" && p.wasReady() {
			newest[p.Role.Engine] = p
		}
	}
	for _, p := range newest {
		if p.Role.NATS != "" && !p.Exited() { // the test has closed the link between this process and NATS
			p.Kill()
		}
		p.Role.NATS = ""
		if p.Exited() {
			p.Restart()
		}
	}
}

func (p *Process) wasReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// deleteAll deletes sandboxes through the client, as a user would.
func (f remains) deleteAll(sandboxes map[string][]string) {
	f.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deletedWithin)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(deletesAtOnce)
	for tenant, ids := range sandboxes {
		client, err := sdk.Connect(ctx, sdk.Options{Conn: f.Conn, Tenant: tenant})
		if err != nil {
			f.TB.Errorf("connect as tenant %s: %v", tenant, err)
			continue
		}
		defer client.Close()
		for _, id := range ids {
			group.Go(func() error {
				if err := client.Sandbox(id).Delete(ctx); err != nil {
					return fmt.Errorf("delete %s/%s: %w", tenant, id, err)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		f.TB.Errorf("at the end of the test: %v", err)
	}
}

// cleanUp ends all processes of the fleet and removes by force what is left.
func (f remains) cleanUp() {
	if f.TB.Failed() {
		f.report()
	}
	for _, c := range []*sdk.Client{f.Client, f.Operator} {
		if c != nil {
			c.Close()
		}
	}
	deployment := ""
	if f.Conn != nil {
		deployment = f.Conn.Deployment()
		f.Conn.Close()
	}
	for _, p := range f.processes {
		p.Kill()
	}
	for _, s := range f.Servers {
		if s != nil {
			s.Stop()
		}
	}
	if deployment != "" {
		for address := range f.engines {
			f.removeAll(address, deployment)
		}
	}
	if err := errors.Join(os.RemoveAll(f.Dir), os.RemoveAll(f.StoreDir)); err != nil {
		f.TB.Errorf("remove the fleet's directories: %v", err)
	}
}
