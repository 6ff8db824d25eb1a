package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// counter is an exec that prints its process id and then the numbers 0, 1, 2 … until a file tells it to end.
type counter struct {
	s    *sdk.Sandbox
	x    *sdk.Exec
	pid  string
	stat string // the kernel's start time of the process

	live    lockedBuffer // output received by a reader that stays connected
	reading <-chan error
}

// lockedBuffer is a buffer. The test can read it while another goroutine writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

const countUntilTold = `echo $$; i=0; while [ ! -e /tmp/enough ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 9`

func startCounter(ctx context.Context, f *fleet.Fleet, id string) (*counter, error) {
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id))
	if err != nil {
		return nil, err
	}
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", countUntilTold}}, sdk.WithID("counter"))
	if err != nil {
		return nil, err
	}
	c := &counter{s: s, x: x}
	c.reading = begin(func() error {
		_, err := x.Wait(ctx, sdk.WithStdout(&c.live))
		return err
	})
	return c, nil
}

// count returns the last number that the live reader has received, or -1 before the first number.
func (c *counter) count() int { return bytes.Count(c.live.Bytes(), []byte("\n")) - 2 }

// process returns the start time of the counter's process. A later process with the same id has another start time.
func (c *counter) process(ctx context.Context) (string, error) {
	r, err := c.s.Exec(ctx, protocol.ExecSpec{Command: []string{"cat", "/proc/" + c.pid + "/stat"}})
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(r.Stdout))
	if len(fields) < 22 {
		return "", fmt.Errorf("no process %s: %s", c.pid, r.Stderr)
	}
	return fields[21], nil
}

func startCounters(t *testing.T, f *fleet.Fleet, n int) []*counter {
	t.Helper()
	counters := make([]*counter, n)
	ctx := f.Context(3 * time.Minute)
	var group errgroup.Group
	group.SetLimit(4)
	for i := range counters {
		group.Go(func() (err error) {
			counters[i], err = startCounter(ctx, f, fmt.Sprintf("s%d", i))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, c := range counters {
		f.Eventually(10*time.Second, "the execs count", func() error {
			if c.count() < 3 {
				return fmt.Errorf("exec %d is at %d", i, c.count())
			}
			return nil
		})
		c.pid, _, _ = strings.Cut(string(c.live.Bytes()), "\n")
		var err error
		if c.stat, err = c.process(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return counters
}

// stillThere checks that each counter still runs in the same process and continues to print.
func stillThere(t *testing.T, f *fleet.Fleet, counters []*counter) {
	t.Helper()
	ctx := f.Context(time.Minute)
	var group errgroup.Group
	for i, c := range counters {
		group.Go(func() error {
			stat, err := c.process(ctx)
			if err == nil && stat != c.stat {
				err = fmt.Errorf("process %s was started at %s, now at %s", c.pid, c.stat, stat)
			}
			if err != nil {
				return fmt.Errorf("sandbox %d: %w", i, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	for i, c := range counters {
		at := c.count()
		f.Eventually(15*time.Second, "the output continues", func() error {
			if c.count() < at+3 {
				return fmt.Errorf("exec %d stays at %d", i, c.count())
			}
			return nil
		})
	}
}

// servedWithin is how soon after its start a worker must have served an exec. After 5 s a coordinator notifies the
// worker again, which would hide a lost notification.
const servedWithin = 4 * time.Second

// firstExec measures the time from the start of a worker to the end of the first exec. The exec waits for that worker.
func firstExec(
	t *testing.T, f *fleet.Fleet, s *sdk.Sandbox, start func() *fleet.Process,
) (*fleet.Process, time.Duration) {
	t.Helper()
	ctx := f.Context(time.Minute)
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	served := begin(func() error {
		_, err := x.Wait(ctx)
		return err
	})
	w := start()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	return w, time.Since(started)
}

// TestEverythingIsRestartedUnderTwentySandboxes kills the worker, and later everything except the Docker Engine, while
// execs run in twenty sandboxes. The execs are not affected.
func TestEverythingIsRestartedUnderTwentySandboxes(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	counters := startCounters(t, f, 20)

	w.Kill()
	w, took := firstExec(t, f, counters[0].s, w.Restart)
	t.Logf("worker restarted: %s to the first served exec, with %d sandboxes", took.Round(time.Millisecond),
		len(counters))
	if took > servedWithin {
		t.Errorf("the first exec was served %s after the worker's start", took)
	}
	stillThere(t, f, counters)

	w.Kill()
	f.Processes("coordinator")[0].Kill()
	f.Servers[0].Stop()
	var err error
	if f.Servers[0], err = f.Servers[0].Restart(); err != nil {
		t.Fatal(err)
	}
	f.Coordinator("c1", fleet.Role{})
	w, took = firstExec(t, f, counters[0].s, w.Restart)
	t.Logf("everything restarted: %s from the worker's start to the first served exec", took.Round(time.Millisecond))
	if took > servedWithin {
		t.Errorf("the first exec was served %s after the worker's start", took)
	}
	stillThere(t, f, counters)

	var group errgroup.Group
	for i, c := range counters {
		group.Go(func() error {
			err := c.finish(f)
			if err == nil {
				err = c.s.Delete(f.Context(time.Minute))
			}
			if err != nil {
				return fmt.Errorf("sandbox %d: %w", i, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// finish ends a counter. It compares the output that a live reader and a late reader get with the numbers that the
// counter must have printed.
func (c *counter) finish(f *fleet.Fleet) error {
	ctx := f.Context(time.Minute)
	if _, err := c.s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/enough"}}); err != nil {
		return err
	}
	if err := <-c.reading; err != nil {
		return err
	}
	x, err := c.s.GetExec(ctx, c.x.ID())
	if err != nil {
		return err
	}
	info := x.Info()
	if info.State != protocol.ExecStateFinished || info.ExitCode == nil || *info.ExitCode != 9 {
		return fmt.Errorf("the exec is %s, %v, %v", info.State, info.ExitCode, info.Error)
	}
	late, err := io.ReadAll(x.Reader(ctx, sdk.Stdout, 0))
	if err != nil {
		return err
	}
	var want bytes.Buffer
	fmt.Fprintln(&want, c.pid)
	for i := 0; want.Len() < len(late); i++ {
		want.WriteString(strconv.Itoa(i) + "\n")
	}
	if !bytes.Equal(late, want.Bytes()) || int64(len(late)) != info.StdoutBytes {
		return fmt.Errorf("a late reader got\n%q", late)
	}
	if hash := protocol.OutputHash(late); info.StdoutSHA256 != hash || info.StderrSHA256 != "" {
		return fmt.Errorf("the exec's hashes are %q and %q, want %q and none", info.StdoutSHA256, info.StderrSHA256, hash)
	}
	if live := c.live.Bytes(); !bytes.Equal(live, late) {
		return fmt.Errorf("the live reader got\n%q\nand a late one\n%q", live, late)
	}
	return nil
}
