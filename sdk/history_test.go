package sdk_test

import (
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A client that waits for something in a sandbox with thousands of past execs reads only new events, not the 3 MB of
// history before them.
func waitsDoNotReadPastHistory(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(2 * time.Minute)
	if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("past")); err != nil {
		t.Fatal(err)
	}
	w1 := f.Processes("worker")[0]
	coordinator := seed.Appender{Conn: f.AsCoordinator("seeds"), Name: "seeds"}
	worker := seed.Appender{Conn: f.AsWorker(w1), Name: w1.Name}
	const execs = 2000
	if err := seed.SignedExecs(ctx, coordinator, worker, f.Client.Tenant(), "past",
		seed.Past{N: execs, Output: make([]byte, 1<<10)}); err != nil {
		t.Fatal(err)
	}
	// The exec ignores TERM, so the wait lasts longer than the first check of a feed.
	run := func() error {
		x := shell("trap '' TERM; sleep 100 & wait; wait")
		x.Grace = protocol.Duration(time.Second)
		_, err := f.Client.Sandbox("past").Start(ctx, x)
		return err
	}
	for _, step := range []struct {
		what string
		do   func(s *sdk.Sandbox) error
	}{
		{"an exec that lasts longer than the first check",
			func(s *sdk.Sandbox) error { _, err := s.Exec(ctx, shell("sleep 1")); return err }},
		{"a wait for a past exec", func(s *sdk.Sandbox) error {
			x, err := s.GetExec(ctx, seed.ID(7))
			if err == nil {
				_, err = x.Wait(ctx)
			}
			return err
		}},
		{"a stop", func(s *sdk.Sandbox) error { return errors.Join(run(), s.Stop(ctx)) }},
		{"a resume", func(s *sdk.Sandbox) error { return s.Resume(ctx) }},
		{"a stop that another client requested", func(s *sdk.Sandbox) error {
			return errors.Join(run(), f.Client.Sandbox("past").Stop(ctx, sdk.WithWait(false)), s.Stop(ctx))
		}},
		{"a stop of a stopped sandbox", func(s *sdk.Sandbox) error { return s.Stop(ctx) }},
		{"a resume", func(s *sdk.Sandbox) error { return s.Resume(ctx) }},
		{"a wait for a state to come", func(s *sdk.Sandbox) error {
			return errors.Join(run(), f.Client.Sandbox("past").Stop(ctx, sdk.WithWait(false)), s.WaitStopped(ctx), s.Resume(ctx))
		}},
		{"a wait for the present state", func(s *sdk.Sandbox) error { return s.WaitReady(ctx) }},
		{"an extension", func(s *sdk.Sandbox) error { return s.Extend(ctx, time.Hour) }},
		{"a delete", func(s *sdk.Sandbox) error { return errors.Join(run(), s.Delete(ctx)) }},
	} {
		conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Name: "reader",
			Creds: f.Options(sdk.Options{}).Creds})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client, err := sdk.Connect(ctx, sdk.Options{Conn: conn})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := step.do(client.Sandbox("past")); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if n := conn.Received(); n > 1<<20 {
			t.Errorf("%s read %d bytes, want at most 1 MiB", step.what, n)
		}
	}
}
