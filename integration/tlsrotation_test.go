package integration

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestARotationUnderLoadLosesNoLeaseAndFailsNoRequest replaces credentials, certificates and the authority of a fleet
// with TLS while clients run execs. Each step ends all connections of those whose secrets it replaces.
func TestARotationUnderLoadLosesNoLeaseAndFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{TLS: true})
	locks := f.WatchLocks()
	s := f.Create("s")
	leaders := elected(t, f)
	ctx := f.Context(3 * time.Minute)
	long, err := s.Start(ctx, script("i=0; while [ ! -e /tmp/enough ]; do echo $i; i=$((i+1)); sleep 0.05; done"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var stop atomic.Bool
	var done atomic.Int64
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				r, err := s.Exec(ctx, script("echo through"))
				if err != nil || r.ExitCode == nil || *r.ExitCode != 0 || string(r.Stdout) != "through\n" {
					t.Errorf("an exec failed: %+v, %v", r, err)
					return
				}
				done.Add(1)
			}
		})
	}
	const rounds = 4
	for range rounds {
		before := done.Load()
		f.ReplaceAuthority()
		f.ReplaceCredentials()
		f.Eventually(30*time.Second, "execs run after the rotation", func() error {
			if now := done.Load(); now < before+20 {
				return fmt.Errorf("%d execs since then", now-before)
			}
			return nil
		})
	}
	stop.Store(true)
	wg.Wait()
	if _, err := s.Exec(ctx, script("touch /tmp/enough")); err != nil {
		t.Fatal(err)
	}
	r, err := long.Wait(ctx)
	if err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("the exec that ran all the time: %+v, %v", r, err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(r.Stdout)), "\n") {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d of the exec that ran all the time is %q", i, line)
		}
	}
	t.Logf("%d execs in %d rotations", done.Load(), rounds)
	held := locks.Of("w1")
	if len(held) < 2 {
		t.Fatalf("%d writes of the worker to the host's lock were seen", len(held))
	}
	for _, tenure := range held {
		if tenure.Holder != held[0].Holder {
			t.Errorf("the worker lost its host's lock and took it again: %+v, then %+v", held[0], tenure)
		}
	}
	if now := elected(t, f); !maps.Equal(now, leaders) {
		t.Errorf("the coordinator lost an election: %v, then %v", leaders, now)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Judge()
}

// elected returns the holder of each lock of the coordinators.
func elected(t *testing.T, f *fleet.Fleet) map[string]jetstream.Holder {
	t.Helper()
	nc, err := f.NATS("elections")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	bucket, err := js.KeyValue(ctx, protocol.BucketElections)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := bucket.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]jetstream.Holder{}
	for _, key := range keys {
		entry, err := bucket.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		var h jetstream.Holder
		if err := protocol.Decode(entry.Value(), &h); err != nil {
			t.Fatal(err)
		}
		all[key] = h
	}
	return all
}
