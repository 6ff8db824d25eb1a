package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// mustPrint runs a script and returns its output without the last newline.
func mustPrint(t *testing.T, f *fleet.Fleet, s *sdk.Sandbox, text string) string {
	t.Helper()
	return strings.TrimSpace(mustExec(f.Context(30*time.Second), t, s, script(text)))
}

// TestTheContainerIsAsTheSpecSays sets each field of a container in the specs of sandboxes. It checks each field inside
// the sandbox and reads it back.
func TestTheContainerIsAsTheSpecSays(t *testing.T) {
	t.Parallel()
	const runtime = "io.containerd.runc.v2" // another name for the engine's default runtime
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Profiles: []string{protocol.ProfileHardened, protocol.ProfileStandard},
		Runtimes: []string{runtime}})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.Hostname, spec.ShmSize, spec.ReadOnly, spec.Runtime, spec.PIDs, spec.CPU = "build-7", 1<<20, true, runtime,
		200, 0.5
	spec.Tmpfs = []protocol.Tmpfs{{Target: "/scratch", Size: 2 << 20}, {Target: "/tmp"}}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("shaped"))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ script, want string }{
		"hostname":            {"hostname", "build-7"},
		"shm_size":            {"df -k /dev/shm | tail -1 | awk '{print $2}'", "1024"},
		"tmpfs size":          {"df -k /scratch | tail -1 | awk '{print $2}'", "2048"},
		"tmpfs default size":  {"df -k /tmp | tail -1 | awk '{print $2}'", "32768"},
		"tmpfs runs programs": {"cp /bin/busybox /tmp/echo && /tmp/echo yes", "yes"},
		"tmpfs is bounded":    {"head -c 3000000 /dev/zero > /scratch/x 2>/dev/null || echo full", "full"},
		"read_only":           {"touch /x 2>/dev/null || echo cannot", "cannot"},
		"pids":                {"cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null || true", "200"},
		"memory": {"cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null " +
			"|| true", "67108864"},
		// the engine may have a lower limit of its own
		"open files": {"test $(ulimit -Hn) -le 65536 && echo bounded", "bounded"},
		"core files": {"grep 'core file' /proc/self/limits | awk '{print $5, $6}'", "1 1"},
		"terminals": {"grep ' /dev/pts devpts ' /proc/mounts | grep -c 'gid=5,mode=620,ptmxmode=666,max='",
			"1"},
		// one filter comes from the engine, one from the supervisor
		"filters of calls": {"test $(grep Seccomp_filters /proc/self/status | cut -f2) -ge 2 && echo two", "two"},
		"no capability":    {"grep CapEff /proc/self/status | cut -f2", "0000000000000000"},
	} {
		if got := mustPrint(t, f, s, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	got := s.Info().Spec
	if got.Hostname != spec.Hostname || got.ShmSize != spec.ShmSize || !got.ReadOnly || got.Runtime != runtime ||
		len(got.Tmpfs) != 2 || got.Profile != protocol.ProfileHardened {
		t.Errorf("read back: %+v", got)
	}
	if got := s.Info().Isolation; got != spec.Runtime {
		t.Errorf("the reported isolation is %q", got)
	}
	f.Judge()
}

// TestAStandardSandboxRunsPackageManagers checks what root may do in a standard sandbox, and what it may not do.
func TestAStandardSandboxRunsPackageManagers(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Profiles: []string{protocol.ProfileHardened, protocol.ProfileStandard}})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.Profile = protocol.ProfileStandard
	s, err := f.Client.Create(ctx, spec, sdk.WithID("standard"))
	if err != nil {
		t.Fatal(err)
	}
	const dockerDefaults, without = 0xa80425fb, 1<<13 | 1<<27 // the capabilities NET_RAW and MKNOD
	for what, c := range map[string]struct{ script, want string }{
		"capabilities of root": {"grep CapEff /proc/self/status | cut -f2", "00000000a00405fb"},
		"capabilities of others": {"su -s /bin/sh nobody -c 'grep CapEff /proc/self/status' | cut -f2",
			"0000000000000000"},
		"no new privileges": {"grep NoNewPrivs /proc/self/status | cut -f2", "1"},
		"change an owner":   {"touch /tmp/x && chown 1000:1000 /tmp/x && stat -c %u /tmp/x", "1000"},
		"read others' files": {"touch /tmp/y && chown 1000 /tmp/y && chmod 000 /tmp/y && cat /tmp/y && echo may",
			"may"},
		"no device files":           {"mknod /tmp/null c 1 3 2>/dev/null || echo cannot", "cannot"},
		"no mounts":                 {"mount -t tmpfs none /mnt 2>/dev/null || echo cannot", "cannot"},
		"no supervisor environment": {"cat /proc/1/environ 2>/dev/null || echo cannot", "cannot"},
		"no supervisor memory":      {"head -c 1 /proc/1/mem 2>/dev/null || echo cannot", "cannot"},
		"no supervisor files":       {"readlink /proc/1/fd/3 || ls /proc/1/root 2>/dev/null || echo cannot", "cannot"},
	} {
		if got := mustPrint(t, f, s, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if want := uint64(dockerDefaults) &^ without; want != 0xa00405fb {
		t.Errorf("the table above is wrong: %x", want)
	}
	// A process may leave its exec's process group. A cancel of the exec still finds the process, through its parent
	// processes.
	x, err := s.Start(ctx, script("su -s /bin/sh nobody -c 'echo here; sleep 600'"))
	if err != nil {
		t.Fatal(err)
	}
	for range x.Output(ctx, sdk.WithFollow(true)) {
		break
	}
	if err := x.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Wait(ctx); protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("cancelled: %v", err)
	}
	if got := mustPrint(t, f, s, "pidof sleep || echo none"); got != "none" {
		t.Errorf("after the cancel a sleep is running: %s", got)
	}
	f.Judge()
}

// TestUnsupportedSpecsAreRefusedAtOnce checks that the error names the field and that nothing is created.
func TestUnsupportedSpecsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	for field, change := range map[string]func(*protocol.SandboxSpec){
		"spec.profile": func(s *protocol.SandboxSpec) { s.Profile = protocol.ProfileStandard },
		"spec.runtime": func(s *protocol.SandboxSpec) { s.Runtime = "runsc" },
		"spec.gpus":    func(s *protocol.SandboxSpec) { s.GPUs = "all" },
		"spec.disk":    func(s *protocol.SandboxSpec) { s.Disk = 1 << 30 },
	} {
		spec := f.Spec()
		change(&spec)
		_, err := f.Client.Create(ctx, spec)
		e := protocol.AsError(err)
		if err == nil || e.Field != field || e.Code != protocol.PermissionDenied &&
			e.Code != protocol.FailedPrecondition {
			t.Errorf("%s: %v", field, err)
		}
		if field == "spec.disk" && (e == nil || !strings.Contains(e.Message, "pquota")) {
			t.Errorf("%s is not refused in the Engine's own words: %v", field, err)
		}
	}
	becomesEmpty(f, f.Processes("worker")[0]) // the Engine refuses some specs on the host, and the worker must clean up
	f.Judge()
}

// The kernel first kills a command, and then a child of another command.
func TestAnOutOfMemoryKillIsVisible(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("hungry")
	const eat = "tail /dev/zero"
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"tail", "/dev/zero"}})
	if err != nil || code(r) != "137" || r.Reason != protocol.ReasonOOMKilled || r.OOMKills != 1 {
		t.Errorf("a command that used up the memory: %+v, %v", r, err)
	}
	e := find(t, history(ctx, t, f.Client, "hungry"), protocol.ExecFinished)
	if e.Reason != protocol.ReasonOOMKilled || e.Exec.OOMKills != 1 {
		t.Errorf("in the history: %+v", e)
	}
	r, err = s.Exec(ctx, script(eat+"; exit 3"))
	if err != nil || code(r) != "3" || r.Reason != "" || r.OOMKills != 1 {
		t.Errorf("a command whose child used up the memory: %+v, %v", r, err)
	}
	if x, err := s.GetExec(ctx, r.ID); err != nil || x.Info().OOMKills != 1 {
		t.Errorf("read back: %+v, %v", x, err)
	}
	// PID 1 has the score of its command for a moment: until it knows that the command has started.
	scores, err := s.Exec(ctx, script("cat /proc/self/oom_score_adj; i=0; "+
		"while [ $(cat /proc/1/oom_score_adj) != 0 ] && [ $i -lt 1000 ]; do i=$((i+1)); done; cat /proc/1/oom_score_adj"))
	if err != nil || string(scores.Stdout) != "1000\n0\n" {
		t.Errorf("the kernel prefers to kill PID 1: a command and PID 1 have the scores %q, %v", scores.Stdout, err)
	}
	if r, err = s.Exec(ctx, script("true")); err != nil || r.OOMKills != 0 {
		t.Errorf("the next one: %+v, %v", r, err)
	}
	if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateReady {
		t.Error(errors.Join(err, errors.New("the sandbox is "+string(s.Info().State))))
	}
	f.Judge()
}

// TestASandboxIsDeletedWhenItExpires checks the end of the lifetime in every state, and changes of the lifetime.
func TestASandboxIsDeletedWhenItExpires(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.TTL = protocol.Duration(4 * time.Second)
	// A sandbox expires no matter in which state it is.
	limited, err := f.Client.Create(ctx, spec, sdk.WithID("limited"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if i := limited.Info(); i.ExpiresAt.Sub(i.CreatedAt) != spec.TTL.Std() {
		t.Errorf("created at %s, expires at %s", i.CreatedAt, i.ExpiresAt)
	}
	busy, stopped, longer := f.Create("busy"), f.Create("stopped"), f.Create("longer")
	x, err := busy.Start(ctx, script("sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	const soon = 8 * time.Second
	for _, step := range []struct {
		s   *sdk.Sandbox
		ttl time.Duration
	}{
		{longer, soon}, {longer, time.Hour}, // the second extension sets a later end
		{busy, time.Hour}, {busy, soon}, // the second extension sets an earlier end
		{stopped, soon},
	} {
		if err := step.s.Extend(ctx, step.ttl); err != nil {
			t.Fatal(err)
		}
	}
	if left := time.Until(longer.Info().ExpiresAt); left < 59*time.Minute || left > time.Hour {
		t.Errorf("extended by an hour, %s are left", left)
	}
	for _, s := range []*sdk.Sandbox{limited, busy, stopped} {
		if err := s.WaitDeleted(ctx); err != nil {
			t.Fatal(err)
		}
		i := s.Info()
		if i.Reason != protocol.ReasonTTL {
			t.Errorf("%s was deleted with reason %s", s.ID(), i.Reason)
		}
		asked := find(t, history(ctx, t, f.Client, s.ID()), protocol.SandboxDeleteRequested)
		if late := asked.Time.Sub(i.ExpiresAt); late < 0 || late > 5*time.Second {
			t.Errorf("%s was deleted %s after it expired", s.ID(), late)
		}
	}
	if r, err := x.Wait(ctx); protocol.CodeOf(err) != protocol.Cancelled || r.Reason != protocol.ReasonSandboxDeleted {
		t.Errorf("the exec of the busy one: %+v, %v", r, err)
	}
	if err := longer.Refresh(ctx); err != nil || longer.Info().State != protocol.StateReady {
		t.Errorf("the extended one is %s, %v", longer.Info().State, err)
	}
	if err := busy.Extend(ctx, time.Hour); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("extend a deleted one: %v", err)
	}
	if err := longer.Extend(ctx, -time.Hour); protocol.AsError(err).Field != "ttl" {
		t.Errorf("extend by nothing: %v", err)
	}
	f.Judge()
}
