package sdk_test

import (
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func eventsReplayAndFollowInOneSequence(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("follow")
	there := s.Info().Sequence
	next := uint64(2)
	for e, err := range f.Client.Sandbox(s.ID()).Events(ctx, sdk.WithFrom(2), sdk.WithFollow(true)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Sequence != next || e.Replay != (e.Sequence <= there) || e.State == "" {
			t.Fatalf("got event %d, replay %v of %d, state %q; want event %d", e.Sequence, e.Replay, there, e.State, next)
		}
		if next == there { // all other events happen while the follower waits
			go func() {
				if _, err := s.Exec(ctx, command("true")); err != nil {
					t.Error(err)
				}
				if err := s.Delete(ctx); err != nil {
					t.Error(err)
				}
			}()
		}
		next++
	}
	if next <= there+5 {
		t.Errorf("the sequence ended after event %d, before the deletion", next-1)
	}
}

func aSlowFollowerMissesNothing(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("slow")
	const execs = 400 // more batches than fit into followerBuffer
	next := uint64(1)
	for e, err := range f.Client.Sandbox(s.ID()).Events(ctx, sdk.WithFollow(true)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Sequence != next {
			t.Fatalf("got event %d, want %d", e.Sequence, next)
		}
		if next == s.Info().Sequence {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range execs / 8 {
						if _, err := s.Exec(ctx, command("true")); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		}
		if next++; next == s.Info().Sequence+3*execs {
			break
		}
	}
}

func eventsOutOfRangeAreRefused(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("range")
	for name, tc := range map[string]struct {
		sandbox string
		from    uint64
		code    protocol.Code
		reason  string
	}{
		"beyond the end": {s.ID(), s.Info().Sequence + 2, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd},
		"no sandbox":     {"never-was", 1, protocol.NotFound, ""},
		"invalid id":     {"a.b", 1, protocol.InvalidArgument, ""},
	} {
		for _, follow := range []bool{false, true} {
			for _, err := range f.Client.Sandbox(tc.sandbox).Events(ctx, sdk.WithFrom(tc.from), sdk.WithFollow(follow)) {
				if err == nil {
					t.Fatalf("%s: got an event, want an error", name)
				}
				wantError(t, err, tc.code, tc.reason)
			}
		}
	}
}
