package embedded_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// clusterOnSmallDisks runs a provisioned cluster of three servers, each with a file system of its own below dir.
func clusterOnSmallDisks(t *testing.T) (dir string, servers []*embedded.Server, c *jetstream.Conn) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"n1", "n2", "n3"} {
		at := filepath.Join(dir, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("boxfleet-test", at, "tmpfs", 0, "size=32m"); err != nil {
			t.Skipf("mount: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) }) // a server may still have files open
	}
	servers, err := embedded.StartCluster(dir, 3)
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for i := range servers {
		urls = append(urls, servers[i].ClientURL())
		t.Cleanup(func() { servers[i].Stop() })
	}
	c, err = jetstream.Connect(
		t.Context(),
		jetstream.Config{URL: strings.Join(urls, ","), Logger: slog.New(slog.DiscardHandler)},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Provision(t.Context(), jetstream.Assets{Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	return dir, servers, c
}

// The cluster continues without the server whose disk is full. Free space alone does not bring that server back; a
// restart does.
func TestAClusterContinuesWithoutTheServerWhoseDiskIsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	t.Parallel()
	dir, servers, c := clusterOnSmallDisks(t)
	background(t, func(ctx context.Context) { _ = c.WatchStore(ctx, nil) }) // WatchStore returns when ctx ends
	full := leaderOfEvents(t, c)
	ballast := filepath.Join(dir, full, "ballast")
	fill(t, ballast)
	eventually.Holds(t, 30*time.Second, "another server leads and accepts appends", func() bool {
		return appendOne(t.Context(), c, newID()) == nil && leaderOfEvents(t, c) != full
	})
	named := func() bool {
		problems := strings.Join(c.Storage(t.Context()).Problems, "; ")
		return strings.Contains(problems, "NATS server "+full+" ") && strings.Contains(problems, "restarted")
	}
	eventually.Holds(t, 30*time.Second, "a problem names the server whose disk is full", named)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(servers, func(s *embedded.Server) bool { return s.Name() == full })
	if servers[at].JetStreamEnabled() {
		t.Error("JetStream is enabled again by itself, but the documentation says that the server must be restarted")
	}
	servers[at].Stop()
	again, err := servers[at].Restart()
	if err != nil {
		t.Fatal(err)
	}
	servers[at] = again
	eventually.Holds(t, 30*time.Second, "all streams are in sync again", func() bool {
		return len(c.Storage(t.Context()).Problems) == 0
	})
	if err := appendOne(t.Context(), c, newID()); err != nil {
		t.Error(err)
	}
}

// leaderOfEvents returns the name of the server that leads the event log, or an empty text if it has no leader.
func leaderOfEvents(t *testing.T, c *jetstream.Conn) string {
	t.Helper()
	streams := c.Storage(t.Context()).Streams
	isEvents := func(s protocol.StreamStorage) bool { return s.Name == protocol.StreamEvents }
	if i := slices.IndexFunc(streams, isEvents); i >= 0 {
		return streams[i].Leader
	}
	return ""
}
