package sdk_test

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A handle made from only the id of an exec can do everything that the handle returned by Start can do.
func anExecIsReachedByItsID(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("by-id")
	script := "echo out; echo err >&2; until test -e /tmp/go; do sleep 0.02; done; echo late; exit 3"
	if _, err := s.Start(ctx, shell(script), sdk.WithID("x")); err != nil {
		t.Fatal(err)
	}
	x := f.Client.Sandbox("by-id").ExecByID("x")
	if x.ID() != "x" || x.Info().State != "" {
		t.Errorf("a handle that made no call yet: %s, %+v", x.ID(), x.Info())
	}
	f.Eventually(20*time.Second, "the exec runs", func() error { return stateIs(ctx, s, "x", sdk.ExecStateRunning) })
	if err := x.Refresh(ctx); err != nil || x.Info().State != sdk.ExecStateRunning {
		t.Errorf("refreshed: %s, %v; want a running exec", x.Info().State, err)
	}
	if _, err := s.Exec(ctx, command("touch", "/tmp/go")); err != nil {
		t.Fatal(err)
	}
	for _, follow := range []bool{true, false} {
		kinds := []protocol.Kind{}
		for e, err := range x.Events(ctx, sdk.WithFollow(follow)) {
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, e.Kind)
		}
		want := []protocol.Kind{protocol.ExecAccepted, protocol.ExecStarted, protocol.ExecFinished}
		if !slices.Equal(kinds, want) {
			t.Errorf("events, follow %v: %v, want %v", follow, kinds, want)
		}
	}
	var stdout bytes.Buffer
	r, err := x.Wait(ctx, sdk.WithStdout(&stdout), sdk.WithOffset(sdk.Stdout, 4), sdk.WithOffset(sdk.Stderr, 1))
	if err != nil || stdout.String() != "late\n" || string(r.Stderr) != "rr\n" || r.Incomplete {
		t.Errorf("a wait from offsets: %q, %+v, %v", stdout.String(), r, err)
	}
	info := x.Info()
	if info.State != sdk.ExecStateFinished || *info.ExitCode != 3 || info.StdoutBytes != 9 || info.EndedAt.IsZero() {
		t.Errorf("after the wait the handle has %+v, want the end of the exec", info)
	}
	if err := x.Refresh(ctx); err != nil || x.Info().Sequence != info.Sequence || !x.Info().EndedAt.Equal(info.EndedAt) {
		t.Errorf("refreshed after the end: %+v, %v; want what the wait learnt: %+v", x.Info(), err, info)
	}
	if text, err := io.ReadAll(x.Reader(ctx, sdk.Stdout, 4)); err != nil || string(text) != "late\n" {
		t.Errorf("read from an offset: %q, %v", text, err)
	}
	unknown := s.ExecByID("never-was")
	wantError(t, unknown.Refresh(ctx), protocol.NotFound, "")
	_, err = unknown.Wait(ctx)
	wantError(t, err, protocol.NotFound, "")
	_, err = sdk.ReadAll(unknown.Output(ctx))
	wantError(t, err, protocol.NotFound, "")
	for _, follow := range []bool{true, false} {
		_, err = sdk.ReadAll(unknown.Events(ctx, sdk.WithFollow(follow)))
		wantError(t, err, protocol.NotFound, "")
		_, err = sdk.ReadAll(s.ExecByID("a b").Events(ctx, sdk.WithFollow(follow)))
		wantField(t, err, "exec")
	}
	late, err := sdk.ReadAll(x.Events(ctx, sdk.WithFollow(true), sdk.WithFrom(info.Sequence+1)))
	if err != nil || len(late) > 0 {
		t.Errorf("followed from after the end of the exec: %d events, %v; want none", len(late), err)
	}
}
