package jetstream_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// writeSeed makes a key, writes its seed to a file, and returns a user with that key and all rights.
func writeSeed(t testing.TB, file string) *server.NkeyUser {
	t.Helper()
	pair, err := nkeys.CreateUser()
	must(t, err)
	seed, err := pair.Seed()
	must(t, err)
	public, err := pair.PublicKey()
	must(t, err)
	must(t, os.WriteFile(file+".new", append(seed, '\n'), 0o600))
	must(t, os.Rename(file+".new", file))
	return &server.NkeyUser{Nkey: public}
}

// TestAConnectionWithAnNKeySignsAndTakesANewSeed gives the server a new key first, and later the client.
func TestAConnectionWithAnNKeySignsAndTakesANewSeed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, other := filepath.Join(dir, "c1.nk"), filepath.Join(dir, "next.nk")
	first := writeSeed(t, file)
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: t.TempDir(), Nkeys: []*server.NkeyUser{first}}
	given := opts.Clone() // the server changes its options
	s, err := server.NewServer(opts)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready after 10 s")
	}
	admit := func(u *server.NkeyUser) { // ends connections with other keys
		t.Helper()
		next := given.Clone()
		next.Nkeys = []*server.NkeyUser{u}
		must(t, s.ReloadOptions(next))
	}
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.ClientURL(), NKey: file, Logger: quiet})
	must(t, err)
	defer c.Close()
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	must(t, c.RegisterWriter(t.Context(), protocol.OwnerCoordinator, "c1", ""))
	signs := func(id string, u *server.NkeyUser) {
		t.Helper()
		eventually.Holds(t, 10*time.Second, "the connection has registered its key", func() bool {
			owner, err := c.Writer(t.Context(), u.Nkey)
			return err == nil && owner.Name == "c1"
		})
		do(t, journal(c, "t1", id, "c1"), protocol.Event{Kind: protocol.SandboxAccepted, Request: id,
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}}})
	}
	signs("s1", first)

	second := writeSeed(t, other)
	admit(second)
	eventually.Holds(t, 10*time.Second, "the server refuses the old key", func() bool {
		e := protocol.AsError(c.Health())
		return e != nil && e.Code == protocol.PermissionDenied && e.Field == "nkey"
	})
	copyFile(t, other, file)
	eventually.Holds(t, 10*time.Second, "the server accepts the new key", func() bool { return c.Health() == nil })
	signs("s2", second)

	third := writeSeed(t, file)
	must(t, c.Flush(t.Context())) // the open connection keeps its key
	admit(third)
	signs("s3", third)
}
