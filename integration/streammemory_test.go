package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/sdk"
)

// What a worker may use with many streams, and how much the busy ones carry meanwhile.
const (
	manyStreams      = 100
	busyStreams      = 10
	workerMemoryMost = 80 << 20
	carriedLeast     = 48 << 20 // by each busy stream
)

// TestAWorkerWithAHundredStreamsStaysSmall opens a hundred streams, ten of which are busy in all ways at once:
// connections and files, to the sandbox and from it.
func TestAWorkerWithAHundredStreamsStaysSmall(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(3 * time.Minute)
	boxes := []served{serve(ctx, t, f, "small-0", nil), serve(ctx, t, f, "small-1", nil)}
	worker := f.Processes("worker")[0]
	for i := range manyStreams - busyStreams {
		boxes[i%len(boxes)].dial(ctx, "tcp", "localhost:7000")
	}
	idle := worker.PeakMemory()
	within, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	var carried [busyStreams]atomic.Int64
	for i := range busyStreams {
		s := boxes[i%len(boxes)]
		group.Go(func() error {
			if err := s.busy(within, i, &carried[i]); within.Err() == nil {
				return fmt.Errorf("busy stream %d: %w", i, err)
			}
			return nil
		})
	}
	f.Eventually(2*time.Minute, "each busy stream has carried enough", func() error {
		for i := range carried {
			if n := carried[i].Load(); n < carriedLeast {
				return fmt.Errorf("busy stream %d has carried %d MiB", i, n>>20)
			}
		}
		return nil
	})
	stop()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	used := worker.PeakMemory()
	t.Logf("the worker's peak memory: %d MiB with idle streams, %d MiB with busy ones", idle>>20, used>>20)
	if used > workerMemoryMost {
		t.Errorf("the worker used %d MiB, at most %d are allowed", used>>20, workerMemoryMost>>20)
	}
}

// busy carries bytes until ctx ends. The number chooses in which way.
func (s served) busy(ctx context.Context, number int, carried *atomic.Int64) error {
	count := &counted{n: carried}
	path := fmt.Sprintf("/var/busy%d", number)
	for ctx.Err() == nil {
		var err error
		switch number % 4 {
		case 0, 1:
			err = s.busyConnection(ctx, number%2 == 0, count)
		case 2:
			_, err = s.box.Files().Write(ctx, path, io.TeeReader(io.LimitReader(&numbers{}, carriedLeast/2), count))
		case 3:
			if _, err = s.box.Files().Write(ctx, path, io.LimitReader(&numbers{}, carriedLeast/2)); err == nil {
				var r *sdk.FileReader
				if r, err = s.box.Files().Read(ctx, path); err == nil {
					_, err = io.Copy(count, r)
					err = errors.Join(err, r.Close())
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s served) busyConnection(ctx context.Context, down bool, count io.Writer) error {
	conn, err := s.box.DialContext(ctx, "tcp", "localhost:7000")
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if down {
		if _, err := fmt.Fprintf(conn, "send %d\n", int64(1)<<40); err != nil {
			return err
		}
		_, err = io.Copy(count, conn)
		return err
	}
	if _, err := io.WriteString(conn, "sum\n"); err != nil {
		return err
	}
	_, err = io.Copy(conn, io.TeeReader(&numbers{}, count))
	return err
}

// counted counts bytes.
type counted struct{ n *atomic.Int64 }

func (c *counted) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
