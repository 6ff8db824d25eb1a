package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// processesOf returns the processes of a sandbox whose command has a text.
func processesOf(list *sdk.ProcessList, text string) (found []sdk.Process) {
	for _, c := range list.Containers {
		for _, p := range c.Processes {
			if strings.Contains(p.Command, text) {
				found = append(found, p)
			}
		}
	}
	return found
}

func TestProcessesOfASandboxNameTheirExecs(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	spec := withServices(f, services{"db": small("exec sleep 4000")}, nil)
	spec.Command = []string{"sleep", "3000"}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"), sdk.WithName("named"))
	if err != nil {
		t.Fatal(err)
	}
	hostile := "\x1b[2J\n\u202e evil"
	for id, command := range map[string][]string{
		"busy":    {"sh", "-c", "while :; do :; done"},
		"tree":    {"sh", "-c", "sleep 1001 & setsid sleep 1002 & wait"},
		"hostile": {"sh", "-c", "sleep 1003; : $0", hostile + strings.Repeat("x", 1000)},
	} {
		x := protocol.ExecSpec{Command: command}
		if id == "tree" {
			x.User = "1234"
		}
		if _, err := s.Start(ctx, x, sdk.WithID(id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sleep", "1004"}, Service: "db"},
		sdk.WithID("indb")); err != nil {
		t.Fatal(err)
	}
	var list *sdk.ProcessList
	f.Eventually(20*time.Second, "all processes are listed with their execs", func() error {
		var err error
		if list, err = f.Client.Sandbox("named").Processes(ctx); err != nil {
			return err
		}
		for text, exec := range map[string]string{"while :": "busy", "sleep 1001": "tree", "sleep 1002": "tree",
			"evil": "hostile", "sleep 1004": "indb", "sleep 3000": "", "sleep 4000": ""} {
			found := processesOf(list, text)
			if len(found) == 0 || found[len(found)-1].Exec != exec || found[len(found)-1].Primary != (exec == "") {
				return fmt.Errorf("%q: %+v", text, found)
			}
		}
		return nil
	})
	if list.Worker != "w1" || list.HostID == "" || len(list.Containers) != 2 || list.Containers[0].Service != "" ||
		list.Containers[1].Service != "db" {
		t.Errorf("the list is of worker %q on host %q and has %d containers", list.Worker, list.HostID, len(list.Containers))
	}
	for _, c := range list.Containers {
		for _, p := range c.Processes {
			if len(p.Command) > protocol.MaxProcessCommand || p.PID <= 1 || p.At <= p.Started || p.Memory < 0 || p.State == "" {
				t.Errorf("process %+v", p)
			}
		}
	}
	if p := processesOf(list, "sleep 1002"); p[0].UID != 1234 {
		t.Errorf("the user is %d, want 1234", p[0].UID)
	}
	busy := processesOf(list, "while :")[0]
	f.Eventually(20*time.Second, "the busy process uses a core", func() error {
		later, err := s.Processes(ctx)
		if err != nil {
			return err
		}
		now := processesOf(later, "while :")[0]
		if cores, known := now.CPUSince(&busy); !known || cores < 0.1 || cores > 1.5 {
			return fmt.Errorf("it uses %v cores, %v", cores, known)
		}
		return nil
	})
	f.Judge()
}

func TestUsageOfASandboxIsTheKernels(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	spec := withServices(f, services{"web": web("0.1")}, nil)
	spec.CPU, spec.PIDs = 1, 200
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Containers) != 2 || before.Containers[0].Service != "" || before.Containers[1].Service != "web" {
		t.Fatalf("the containers are %+v", before.Containers)
	}
	for _, c := range before.Containers {
		if c.Error != nil || c.Memory <= 0 || c.PIDs <= 0 || c.CPU <= 0 || c.Boot == "" || c.At <= 0 {
			t.Errorf("the container %q uses %+v", c.Service, c)
		}
	}
	if c := before.Containers[0]; c.MemoryLimit != spec.Memory || c.PIDsLimit < 200 || c.CPULimit != 1 {
		t.Errorf("the limits are %+v", c)
	}
	if before.Containers[1].MemoryLimit != 32<<20 {
		t.Errorf("the service's limit is %s", before.Containers[1].MemoryLimit)
	}
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
		"wget -q -O - http://web/ && timeout 1 sh -c 'while :; do :; done'; " +
			"dd if=/dev/zero of=/var/written bs=1M count=8 conv=fsync 2>/dev/null"}})
	if err != nil || string(r.Stdout) != "hello\n" || code(r) != "0" {
		t.Fatalf("%+v, %v", r, err)
	}
	after, err := s.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range after.Containers {
		now, then := &after.Containers[i], &before.Containers[i]
		if now.Received <= then.Received || now.Sent <= then.Sent {
			t.Errorf("the network of %q: %+v and then %+v", now.Service, then, now)
		}
		if cores, known := now.CPUSince(then); !known || i == 0 && cores < 0.05 || cores > 2 {
			t.Errorf("the container %q used %v cores, %v", now.Service, cores, known)
		}
	}
	now, then := after.Containers[0].Written, before.Containers[0].Written
	if now == nil || then == nil {
		t.Error("this kernel does not count what containers write")
	} else if *now-*then < 8<<20 {
		t.Errorf("the sandbox wrote 8 MiB to the disk, and its usage grew from %s to %s", *then, *now)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = s.Usage(ctx)
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonSandboxNotReady)
	_, err = f.Client.Sandbox("nobody").Usage(ctx)
	wantReason(t, err, protocol.NotFound, "")
	f.Judge()
}

func TestUsageWhileTheWorkerIsAwayNamesItsHost(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("s")
	ctx := f.Context(time.Minute)
	if _, err := s.Processes(ctx); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	began := time.Now()
	for what, ask := range map[string]func(context.Context) error{
		"usage":     func(ctx context.Context) error { _, err := s.Usage(ctx); return err },
		"processes": func(ctx context.Context) error { _, err := s.Processes(ctx); return err },
	} {
		err := ask(ctx)
		wantReason(t, err, protocol.Unavailable, protocol.ReasonWorkerAway)
		if host := s.Info().HostID; err == nil || !strings.Contains(err.Error(), host) {
			t.Errorf("%s: the error does not name host %s: %v", what, host, err)
		}
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the errors took %s, want them at once", took)
	}
	w.Restart()
	f.Eventually(20*time.Second, "the worker answers again", func() error { _, err := s.Usage(ctx); return err })
	f.Judge()
}

// TestAFrozenContainerDelaysNoOtherSandbox freezes a container, so that its supervisor does not answer, and asks for it
// again and again.
func TestAFrozenContainerDelaysNoOtherSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	frozen, other := f.Create("frozen"), f.Create("other")
	container := containerOf(f, localEngine, "frozen")
	docker(t, localEngine, "pause", container)
	defer docker(t, localEngine, "unpause", container)
	const flood = 30
	ended := make(chan error, flood)
	for range flood {
		go func() { _, err := frozen.Processes(ctx); ended <- err }()
	}
	for range 10 {
		began := time.Now()
		if _, err := other.Processes(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the processes of another sandbox took %s", took)
		}
	}
	u, err := frozen.Usage(ctx) // the kernel answers even so
	if err == nil && u.Containers[0].Error == nil && u.Containers[0].Memory <= 0 {
		t.Errorf("the usage of the frozen sandbox: %+v", u)
	}
	for range flood {
		if err := <-ended; err != nil && protocol.CodeOf(err) != protocol.ResourceExhausted &&
			protocol.AsError(err).Reason != protocol.ReasonWorkerAway {
			t.Errorf("the processes of the frozen sandbox: %v", err)
		}
	}
	f.Eventually(20*time.Second, "the answer names the container that does not answer", func() error {
		p, err := frozen.Processes(ctx)
		if err == nil && (p.Containers[0].Error == nil || p.Containers[0].Error.Code != protocol.Unavailable) {
			t.Errorf("the processes of the frozen sandbox: %+v", p)
		}
		return err
	})
}

// TestManyProcessesAreListedInPart starts more processes than are listed.
func TestManyProcessesAreListedInPart(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.PIDs, spec.Memory = 1000, 512<<20
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	const n = protocol.MaxProcesses + 50
	if _, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done; wait", n)}}); err != nil {
		t.Fatal(err)
	}
	f.Eventually(30*time.Second, "all of them run", func() error {
		list, err := s.Processes(ctx)
		if err != nil {
			return err
		}
		c := list.Containers[0]
		if c.Error != nil || len(c.Processes)+c.More != n+1 {
			return fmt.Errorf("%d are listed, and %d more, %v", len(c.Processes), c.More, c.Error)
		}
		if len(c.Processes) != protocol.MaxProcesses {
			t.Errorf("%d processes are listed", len(c.Processes))
		}
		return nil
	})
	f.Judge()
}
