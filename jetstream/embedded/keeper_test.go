package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// smallDisk mounts a separate file system, so that a test can fill it.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("boxfleet-test", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func keep(t *testing.T, dir string) (*embedded.Keeper, *jetstream.Conn) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	k, err := embedded.Keep(embedded.Config{Dir: filepath.Join(dir, "nats"), Port: -1}, embedded.DefaultBallast, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	c, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: k, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	return k, c
}

func background(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// fill writes until the disk is full.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 64<<10)); err != nil {
			return
		}
	}
}

// appendOne writes one batch to a new history.
func appendOne(ctx context.Context, c *jetstream.Conn, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	b := &protocol.Batch{
		Writer:  "k1",
		Tenant:  "t1",
		Sandbox: id,
		Events: []protocol.Event{{Sequence: 1, Kind: protocol.SandboxAccepted,
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}}}},
	}
	_, err := c.Append(ctx, b, 0)
	return err
}

func TestTheLogAcceptsWritesAgainAfterAFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	k, c := keep(t, dir)
	background(t, func(ctx context.Context) { k.Watch(ctx, c.SetWorkMustWait) })
	background(t, func(ctx context.Context) { _ = c.WatchStore(ctx, k.Restart) }) // WatchStore returns when ctx ends
	ballast := filepath.Join(dir, "nats", "ballast")
	ballastExists := func() bool { _, err := os.Stat(ballast); return err == nil }
	eventually.Holds(t, 5*time.Second, "the ballast exists", ballastExists)

	var written, refused atomic.Int64
	background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			if appendOne(ctx, c, newID()) == nil {
				written.Add(1)
			} else {
				refused.Add(1)
			}
		}
	})
	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	eventually.Holds(t, 10*time.Second, "new work is refused", func() bool {
		room, err := c.LogRoom(t.Context())
		return err == nil && room.RefusesNew()
	})
	eventually.Holds(t, 5*time.Second, "the ballast is removed", func() bool { return !ballastExists() })
	filled := time.Now()
	eventually.Holds(t, 10*time.Second, "the disk stays full for five seconds", func() bool {
		fill(t, filler+"2")
		return time.Since(filled) > 5*time.Second
	})
	t.Logf("while the disk was full, %d appends succeeded and %d failed", written.Load(), refused.Load())
	for _, f := range []string{filler, filler + "2"} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	freed, before := time.Now(), written.Load()
	eventually.Holds(t, 8*time.Second, "the log accepts writes", func() bool { return written.Load() > before+10 })
	t.Logf("the log accepted writes %s after the disk had room again", time.Since(freed))
	eventually.Holds(t, 8*time.Second, "new work is accepted and the ballast exists again", func() bool {
		room, err := c.LogRoom(t.Context())
		return err == nil && !room.RefusesNew() && ballastExists()
	})
}

var ids atomic.Int64

func newID() string { return fmt.Sprintf("s%d", ids.Add(1)) }
