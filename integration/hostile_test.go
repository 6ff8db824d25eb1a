package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// hostile is a sandbox with a run directory that the test changes while the worker reads it. Only root in a sandbox
// that an older worker created could make such changes; no other process of a sandbox can.
type hostile struct {
	*fleet.Fleet
	t      *testing.T
	w      *fleet.Process
	s      *sdk.Sandbox
	run    string // the sandbox's run directory on the host
	secret string // a directory of the host with a file "marker"
	marker []byte
}

func startHostile(t *testing.T) *hostile {
	t.Helper()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	h := &hostile{Fleet: f, t: t, w: f.Worker("w1", fleet.Role{}), secret: t.TempDir()}
	h.s = f.Create("hostile")
	h.run = filepath.Join(docker(t, engines.Default(t).Host, "inspect", "-f",
		`{{index .Config.Labels "boxfleet.directory"}}`, containerOf(f, "", "hostile")), "run")
	// The marker is longer than the output of the victims. If a worker read the marker at any offset, the published
	// output would contain marker text.
	h.marker = bytes.Repeat([]byte("OF-THE-HOST-ONLY\n"), 200_000)
	if err := os.WriteFile(filepath.Join(h.secret, "marker"), h.marker, 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

// attack runs a script in the directory that holds the files of all execs. The variables out and exit contain the names
// of two files of the exec with this id.
func (h *hostile) attack(id, script string, stdin []byte) {
	h.t.Helper()
	run, err := os.OpenRoot(h.run)
	if err != nil {
		h.t.Fatal(err)
	}
	defer run.Close()
	begin, err := supervise.FilesOf(run, id)
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir, cmd.Stdin = filepath.Join(h.run, control.ExecsDir), bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "out="+begin+"."+control.StdoutName, "exit="+begin+"."+control.RecordName)
	if output, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("the attack %q itself failed: %v: %s", script, err, output)
	}
}

const victimLines = 30_000

// victim starts an exec that prints more than fits into its result, waits for release, prints the same amount again,
// and exits with 5. victim returns when the first half of the output is published.
func (h *hostile) victim(id string) *sdk.Exec {
	h.t.Helper()
	script := fmt.Sprintf("seq 1 %d; while [ ! -e /tmp/go-%s ]; do sleep 0.05; done; seq 1 %d; exit 5", victimLines, id,
		victimLines)
	x, err := h.s.Start(h.Context(time.Minute), protocol.ExecSpec{Command: []string{"sh", "-c", script}},
		sdk.WithID(id))
	if err != nil {
		h.t.Fatal(err)
	}
	h.Eventually(20*time.Second, "the first half of the output is published", func() error {
		if got := h.output(x); len(got) < len(half()) {
			return fmt.Errorf("%d bytes of %d", len(got), len(half()))
		}
		return nil
	})
	return x
}

// release lets a victim continue.
func (h *hostile) release(id string) {
	h.t.Helper()
	if _, err := h.s.Exec(h.Context(30*time.Second),
		protocol.ExecSpec{Command: []string{"touch", "/tmp/go-" + id}}); err != nil {
		h.t.Fatal(err)
	}
}

func half() []byte {
	var b bytes.Buffer
	for i := 1; i <= victimLines; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.Bytes()
}

// output returns the part of an exec's output that can be read now, stdout and stderr together.
func (h *hostile) output(x *sdk.Exec) []byte {
	h.t.Helper()
	var b []byte
	for k, err := range x.Output(h.Context(20 * time.Second)) {
		if err != nil {
			h.t.Fatalf("read the output of %s: %v", x.ID(), err)
		}
		b = append(b, k.Data...)
	}
	return b
}

// unharmed checks that the host is unchanged and that the same worker process still works.
func (h *hostile) unharmed(outputs ...[]byte) {
	h.t.Helper()
	for i, out := range outputs {
		if bytes.Contains(out, []byte("OF-THE-HOST")) {
			h.t.Errorf("output %d contains data of the host", i)
		}
	}
	entries, err := os.ReadDir(h.secret)
	if err != nil || len(entries) != 1 {
		h.t.Errorf("the host's directory contains %v, %v", entries, err)
	}
	if data, err := os.ReadFile(filepath.Join(h.secret, "marker")); err != nil || !bytes.Equal(data, h.marker) {
		h.t.Errorf("the host's file was changed: %v", err)
	}
	if h.w.Exited() {
		h.t.Fatal("the worker has ended")
	}
}

// TestAHostileRunDirectoryIsNotFollowed replaces the output file of a running exec. The worker publishes no data of the
// host, does not hang, and reports where the output ends early.
func TestAHostileRunDirectoryIsNotFollowed(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	for _, k := range []struct {
		name, script string
		sandboxs     bool // the replacement belongs to the sandbox, so the worker may read it
	}{
		{"symlink", "rm $out; ln -s " + h.secret + "/marker $out", false},
		{"hardlink-to-nothing", "rm $out", false},
		{"fifo", "rm $out; mkfifo $out", false},
		{"directory", "rm $out; mkdir $out; touch $out/a", false},
		{"sparse", "rm $out; truncate -s 10G $out", true},
		{"truncated", "truncate -s 100 $out", true},
	} {
		h.Run(t, k.name, func(t *testing.T) {
			h.t = t
			x := h.victim(k.name)
			before := h.output(x)
			h.attack(k.name, k.script, nil)
			h.release(k.name)
			r, err := x.Wait(h.Context(20*time.Second), sdk.WithCollect(64<<20))
			if err != nil {
				t.Fatal(err)
			}
			exitsWith(t, r, 5)
			after := h.output(x)
			h.unharmed(before, after, r.Stdout, r.Stderr)
			if !bytes.HasPrefix(after, before) || !bytes.HasPrefix(after, half()) {
				t.Error("output that was published before the attack is missing")
			}
			if int64(len(after)) != r.StdoutBytes || len(after) > 2*len(half()) {
				t.Errorf("%d bytes of output, the exec says %d and wrote %d", len(after), r.StdoutBytes, 2*len(half()))
			}
			if !k.sandboxs && !r.Truncated && !bytes.Equal(after, append(half(), half()...)) {
				t.Errorf("only %d bytes were published, and the exec does not report the loss", len(after))
			}
		})
	}
	// The sandbox still works: its next exec runs, and its delete follows no link out of the run directory.
	if _, err := h.s.Exec(h.Context(10*time.Second), protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.secret, filepath.Join(h.run, "link")); err != nil {
		t.Fatal(err)
	}
	if err := h.s.Delete(h.Context(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	h.t = t
	h.unharmed()
	nothingLeft(t, h.Fleet, h.w)
	h.Judge()
}

// TestAHostileExitRecordIsNotBelieved writes forged exit records for running execs. The container then ends before the
// supervisor has written the true records, and the worker reads the forged ones.
func TestAHostileExitRecordIsNotBelieved(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	other := h.Create("other")
	lie := func(id string) []byte {
		code := 0
		return control.Seal(bytes.Repeat([]byte("k"), 32),
			control.Record{Result: control.Result{ID: id, ExitCode: &code}})
	}
	kinds := []struct{ name, script string }{
		{"lie", "cat > $exit"},
		{"garbage", "head -c 4000 /dev/urandom > $exit"},
		{"empty", ": > $exit"},
		{"huge", "truncate -s 10G $exit"},
		{"symlink", "rm $exit; ln -s " + h.secret + "/marker $exit"},
		{"fifo", "rm $exit; mkfifo $exit"},
		{"directory", "rm $exit; mkdir $exit"},
		{"none", "true"},
	}
	victims := map[string]*sdk.Exec{}
	for _, k := range kinds {
		victims[k.name] = h.victim(k.name)
		h.attack(k.name, k.script, lie(k.name))
	}
	// A supervisor that ends by itself would write the true records. SIGKILL gives it no time.
	docker(t, engines.Default(t).Host, "kill", containerOf(h.Fleet, "", "hostile"))
	for _, k := range kinds {
		r, err := victims[k.name].Wait(h.Context(20*time.Second), sdk.WithCollect(64<<20))
		if r == nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		if r.State != protocol.ExecStateFailed || r.Reason != protocol.ReasonInterrupted || r.ExitCode != nil {
			t.Errorf("%s: the exec is %s, reason %q, exit code %v; want failed, interrupted, not known", k.name,
				r.State, r.Reason, r.ExitCode)
		}
		h.unharmed(r.Stdout, r.Stderr)
	}
	inState(h.Fleet, "hostile", protocol.StateFailed, 10*time.Second)
	if _, err := other.Exec(h.Context(10*time.Second), protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Errorf("the next exec: %v", err)
	}
	for _, s := range []*sdk.Sandbox{h.s, other} {
		if err := s.Delete(h.Context(20 * time.Second)); err != nil {
			t.Error(err)
		}
	}
	h.unharmed()
	nothingLeft(t, h.Fleet, h.w)
	h.Judge()
}
