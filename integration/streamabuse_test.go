package integration

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// endlessVariable is an environment variable with how long the endless programs run; default 10 s. `make endless` sets
// it.
const endlessVariable = "BOXFLEET_TEST_ENDLESS"

func endlessFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(endlessVariable)
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", endlessVariable, err)
	}
	return d
}

// usage is what a process has open.
type usage struct{ descriptors, goroutines int }

func usageOf(p *fleet.Process) usage { return usage{p.Descriptors(), p.Goroutines()} }

// What a worker keeps for later: the files of prepared execs in each sandbox, and a goroutine of its first publish. A
// leak in each of many streams exceeds this.
const (
	keptDescriptors = 8
	keptGoroutines  = 4
)

// wantNoMore waits until a worker has no more open than before, except for what it keeps.
func wantNoMore(f *fleet.Fleet, p *fleet.Process, before usage) {
	f.TB.Helper()
	var now usage
	f.Eventually(60*time.Second, "nothing is left open in the worker", func() error {
		if now = usageOf(p); now.descriptors > before.descriptors+keptDescriptors ||
			now.goroutines > before.goroutines+keptGoroutines {
			return fmt.Errorf("it has %+v, and had %+v before", now, before)
		}
		return nil
	})
	f.TB.Logf("the worker has %+v, and had %+v before", now, before)
}

// TestProgramsThatWriteWithoutEndHoldUpNobody runs programs that write as fast as they can: to their output, from their
// input to their output, and into a connection. Their readers are slow, or do not read at all.
func TestProgramsThatWriteWithoutEndHoldUpNobody(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(endlessFor(t) + 4*time.Minute)
	loud, quiet := serve(ctx, t, f, "loud", nil), filesOf(ctx, t, f, "quiet", nil)
	worker := f.Processes("worker")[0]
	loud.dial(ctx, "tcp", "localhost:7000").Close()
	quiet.round(ctx, t)
	before := usageOf(worker)

	within, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for i, run := range []func(context.Context) error{loud.unread, loud.yes, loud.throughCat, loud.throughTunnel} {
		group.Go(func() error {
			if err := run(within); within.Err() == nil {
				return fmt.Errorf("program %d ended: %w", i, err)
			}
			return nil
		})
	}
	began, slowest, rounds := time.Now(), time.Duration(0), 0
	var early int64 // the peak of the memory when the programs have run for a quarter of their time
	for took := time.Duration(0); took < endlessFor(t); took = time.Since(began) {
		if early == 0 && took > endlessFor(t)/4 {
			early = worker.PeakMemory()
		}
		slowest = max(slowest, quiet.round(ctx, t))
		loud.dial(ctx, "tcp", "localhost:7000").Close()
		rounds++
	}
	if late := usageOf(worker); late.goroutines <= before.goroutines {
		t.Errorf("the worker has %d goroutines, and had %d without the programs", late.goroutines, before.goroutines)
	}
	late := worker.PeakMemory()
	stop()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if least := keptDescriptors + 1; rounds < least {
		t.Errorf("only %d rounds ended, too few to notice a leak", rounds)
	}
	t.Logf("%d rounds beside them, the slowest took %s; the worker's peak memory was %d MiB early, %d MiB at the end",
		rounds, slowest, early>>20, late>>20)
	if slowest > 10*time.Second {
		t.Errorf("another sandbox waited %s", slowest)
	}
	if early == 0 || late-early > 24<<20 {
		t.Errorf("the worker's memory grew from %d MiB to %d MiB", early>>20, late>>20)
	}
	wantNoMore(f, worker, before)
}

// round runs a command, and writes and reads a file. It returns how long that took.
func (b boxed) round(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	b.sh(ctx, t, "true")
	b.put(ctx, t, "/tmp/round", "round")
	b.want(ctx, t, "/tmp/round", "round")
	return time.Since(began)
}

// slowly reads from r, 4 KiB every 20 ms, until it fails.
func slowly(ctx context.Context, r io.Reader) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.CopyN(io.Discard, r, 4<<10); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// start starts an exec that is cancelled when ctx ends.
func (s served) start(ctx context.Context, spec protocol.ExecSpec) (x *sdk.Exec, end func(), err error) {
	spec.OutputLimit = 64 << 20 // what the worker publishes at most after the end
	if x, err = s.box.Start(ctx, spec); err != nil {
		return nil, nil, err
	}
	return x, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := x.Cancel(ctx); err != nil {
			s.t.Errorf("cancel: %v", err)
		}
		if _, err := x.Wait(ctx); protocol.CodeOf(err) != protocol.Cancelled {
			s.t.Errorf("wait for the cancelled exec: %v", err)
		}
	}, nil
}

// unread runs a program whose output nobody reads.
func (s served) unread(ctx context.Context) error {
	x, end, err := s.start(ctx, protocol.ExecSpec{Command: []string{"yes"}})
	if err != nil {
		return err
	}
	defer end()
	_, err = x.Wait(ctx)
	return err
}

func (s served) yes(ctx context.Context) error {
	x, end, err := s.start(ctx, protocol.ExecSpec{Command: []string{"yes"}})
	if err != nil {
		return err
	}
	defer end()
	r := x.Reader(ctx, sdk.Stdout, 0)
	defer r.Close()
	return slowly(ctx, r)
}

func (s served) throughCat(ctx context.Context) error {
	x, end, err := s.start(ctx, protocol.ExecSpec{Command: []string{"cat"}, OpenStdin: true})
	if err != nil {
		return err
	}
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return x.CopyStdin(ctx, &numbers{}) })
	group.Go(func() error {
		r := x.Reader(ctx, sdk.Stdout, 0)
		defer r.Close()
		return slowly(ctx, r)
	})
	return group.Wait()
}

func (s served) throughTunnel(ctx context.Context) error {
	conn, err := s.box.DialContext(ctx, "tcp", "localhost:7000")
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "send %d\n", int64(1)<<40); err != nil {
		return err
	}
	return slowly(ctx, conn)
}
