package sdk_test

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A client that waits for something in a sandbox with thousands of past execs reads what follows, and not the
// 3 MB before.
func waitsReadNoHistory(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(2 * time.Minute)
	if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("past")); err != nil {
		t.Fatal(err)
	}
	writer, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Name: "seed"})
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	const execs = 2000
	if err := seed.Execs(ctx, writer, f.Client.Tenant(), "past", seed.Past{N: execs, Output: make([]byte, 1<<10)}); err != nil {
		t.Fatal(err)
	}
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Name: "reader"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := sdk.Connect(ctx, sdk.Options{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := client.Sandbox("past")
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"an exec that takes longer than a feed settles", func() error { _, err := s.Exec(ctx, shell("sleep 1")); return err }},
		{"a wait for a past exec", func() error {
			x, err := s.GetExec(ctx, seed.ID(7))
			if err == nil {
				_, err = x.Wait(ctx)
			}
			return err
		}},
		{"a stop", func() error { return s.Stop(ctx) }},
		{"a stop of a stopped one", func() error { return client.Sandbox("past").Stop(ctx) }},
		{"a resume", func() error { return s.Resume(ctx) }},
		{"a wait for what is", func() error { return client.Sandbox("past").WaitReady(ctx) }},
		{"an extension", func() error { return s.Extend(ctx, time.Hour) }},
		{"a delete", func() error { return client.Sandbox("past").Delete(ctx) }},
	} {
		before := conn.Received()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if n := conn.Received() - before; n > 1<<20 {
			t.Errorf("%s took %d bytes", step.what, n)
		}
	}
	if b := s.Info(); b.TotalExecs < execs || b.State == protocol.StateNone {
		t.Errorf("the sandbox had %d execs", b.TotalExecs)
	}
}
