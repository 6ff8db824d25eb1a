package supervisor

import (
	"maps"
	"os"
	osexec "os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// bystander starts a process that does not belong to any exec, and reports whether it still runs when left is called.
func bystander(t *testing.T) (pid int, left func() bool) {
	t.Helper()
	cmd := osexec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // Wait reports the kill
	return cmd.Process.Pid, func() bool {
		var status unix.WaitStatus
		ended, err := unix.Wait4(cmd.Process.Pid, &status, unix.WNOHANG, nil)
		return err == nil && ended == 0
	}
}

func TestSignal_NeverReachesAnotherProcessWithThePidOfAReapedChild(t *testing.T) {
	pid, runs := bystander(t)
	r := newReaper()
	ended := &child{pid: pid, exited: make(chan struct{})} // its pid was reused
	if err := r.signal(ended, unix.SIGKILL); err != unix.ESRCH {
		t.Errorf("a signal to a reaped child: %v, want %v", err, unix.ESRCH)
	}
	r.children[pid] = &child{pid: pid} // the new process is a child, too
	if err := r.signal(ended, unix.SIGKILL); err != unix.ESRCH {
		t.Errorf("a signal to a reaped child whose pid another child has: %v, want %v", err, unix.ESRCH)
	}
	if !runs() {
		t.Error("the process with the reused pid got the signal")
	}
}

func TestSignal_ToATreeNeverReachesAProcessThatReusedAPid(t *testing.T) {
	pid, runs := bystander(t)
	trees := &trees{base: DefaultGroupBase, self: os.Getpid()}
	// The pid was a member's when the tree was read. Now another process has it.
	sent, err := trees.signalSome([]int{pid}, DefaultGroupBase+7, unix.SIGKILL)
	if sent != 0 || err != nil {
		t.Errorf("sent %d signals, %v, want none", sent, err)
	}
	if !runs() {
		t.Error("the process with the reused pid got the signal")
	}
}

func TestSignal_RemembersTheResultsOfItsNumbers(t *testing.T) {
	t.Parallel()
	e := &exec{why: byItself}
	q := &e.signals
	for n := uint64(1); n <= control.RememberedSignals+2; n++ {
		q.remember(n, &control.SignalResult{Outcome: protocol.SignalDelivered, Processes: int(n)})
	}
	wanted := map[uint64]protocol.SignalOutcome{
		1: protocol.SignalUnknown, 2: protocol.SignalUnknown, 3: protocol.SignalDelivered,
		control.RememberedSignals + 2: protocol.SignalDelivered, control.RememberedSignals + 3: protocol.SignalNotDelivered,
	}
	for _, number := range slices.Sorted(maps.Keys(wanted)) { // the last one is new, and replaces an older one
		want := wanted[number]
		if got := e.signal(&control.Signal{Number: number, Signal: int(unix.SIGKILL)}); got.Outcome != want {
			t.Errorf("signal %d: got %q, want %q", number, got.Outcome, want)
		}
	}
	if len(q.results) > control.RememberedSignals || len(q.order) > control.RememberedSignals {
		t.Errorf("%d results and %d numbers are remembered, want at most %d", len(q.results), len(q.order),
			control.RememberedSignals)
	}
}
