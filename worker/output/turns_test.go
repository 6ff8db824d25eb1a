package output

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const mebibyte = 1 << 20

func sandboxKey(id string) protocol.SandboxKey { return protocol.SandboxKey{Tenant: "t", ID: id} }

// take waits for a turn, until ctx ends.
func take(ctx context.Context, o *turns, k protocol.SandboxKey, size int64) (*turn, error) {
	t := o.ask(k, size)
	select {
	case <-t.granted:
		return t, nil
	case <-ctx.Done():
		t.done()
		return nil, ctx.Err()
	}
}

// granted counts the turns that were granted, including those that have ended.
func granted(turns []*turn) (n int) {
	for _, t := range turns {
		select {
		case <-t.granted:
			n++
		default:
		}
	}
	return n
}

func TestSandboxesAlternateHoweverMuchOneOfThemPrints(t *testing.T) {
	o := newTurns(DefaultBurst, DefaultRate)
	loud, quiet := sandboxKey("loud"), sandboxKey("quiet")
	var loudTurns []*turn
	for range 1000 {
		loudTurns = append(loudTurns, o.ask(loud, jetstream.ChunkSize))
	}
	if n, want := granted(loudTurns), maxSandboxInFlight/jetstream.ChunkSize; n != want {
		t.Fatalf("%d chunks of one sandbox are in flight, want %d", n, want)
	}
	if q := o.ask(quiet, 100); granted([]*turn{q}) != 1 {
		t.Fatal("the quiet sandbox has to wait for the chunks of the loud one")
	}
	// When the limit on bytes in flight is reached, the sandboxes take turns.
	var quietTurns []*turn
	for range 100 {
		quietTurns = append(quietTurns, o.ask(quiet, jetstream.ChunkSize))
	}
	for range 40 {
		for _, side := range [][]*turn{loudTurns, quietTurns} {
			if n := granted(side); n > 0 {
				side[n-1].done()
			}
		}
	}
	if l, q := granted(loudTurns), granted(quietTurns); l-q > 5 || q-l > 5 {
		t.Errorf("the loud sandbox got %d turns, the quiet sandbox %d", l, q)
	}
	if o.inFlight > maxInFlight+jetstream.ChunkSize {
		t.Errorf("%d bytes are in flight, want at most %d", o.inFlight, maxInFlight+jetstream.ChunkSize)
	}
}

func TestExecsOfASandboxTakeTurns(t *testing.T) {
	o := newTurns(DefaultBurst, DefaultRate)
	k := sandboxKey("s")
	var order strings.Builder
	turns := map[string]*turn{}
	for _, exec := range []string{"a", "b", "c"} {
		turns[exec] = o.ask(k, maxSandboxInFlight) // this size allows one turn at a time
	}
	for range 9 {
		for _, exec := range []string{"a", "b", "c"} {
			if granted([]*turn{turns[exec]}) == 1 {
				order.WriteString(exec)
				before := turns[exec]
				turns[exec] = o.ask(k, maxSandboxInFlight)
				before.done()
			}
		}
	}
	if !strings.HasPrefix(order.String(), "abcabcabc") {
		t.Errorf("turns were granted in the order %s, want abcabcabc", order.String())
	}
}

func TestASandboxIsLimitedToItsRateAfterItsBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTurns(8*mebibyte, 2*mebibyte)
		send := func(k protocol.SandboxKey, total int) time.Duration {
			begin := time.Now()
			for range total / jetstream.ChunkSize {
				turn, err := take(t.Context(), o, k, jetstream.ChunkSize)
				if err != nil {
					t.Fatal(err)
				}
				turn.done()
			}
			return time.Since(begin).Round(100 * time.Millisecond)
		}
		k := sandboxKey("s")
		if d := send(k, 8*mebibyte); d != 0 {
			t.Errorf("a burst took %s, want no time", d)
		}
		if d := send(k, 20*mebibyte); d < 9*time.Second || d > 11*time.Second {
			t.Errorf("20 MiB after the burst took %s, want 10s", d)
		}
		if d := send(sandboxKey("other"), 8*mebibyte); d != 0 {
			t.Errorf("the burst of another sandbox took %s, want no time", d)
		}
		time.Sleep(5 * time.Second) // the burst is refilled
		if d := send(k, 8*mebibyte); d > time.Second {
			t.Errorf("the burst after a pause took %s, want at most 1s", d)
		}
		// A message of one byte counts as minCost bytes.
		time.Sleep(5 * time.Second)
		begin := time.Now()
		for range 2 * 8 * mebibyte / minCost {
			turn, err := take(t.Context(), o, k, 1)
			if err != nil {
				t.Fatal(err)
			}
			turn.done()
		}
		if d := time.Since(begin); d < 3*time.Second {
			t.Errorf("messages of one byte took %s, want at least 3s", d)
		}
	})
}

func TestCancelledTurnsAreRemovedFromTheirQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTurns(1, 1)
		k := sandboxKey("s")
		first := o.ask(k, 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := take(ctx, o, k, 100); err == nil {
			t.Fatal("a turn was granted beyond the rate")
		}
		first.done()
		first.done()
		o.mu.Lock()
		if len(o.ring) != 0 || o.inFlight != 0 || o.queues[k].inFlight != 0 || len(o.queues[k].waiting) != 0 {
			t.Errorf("after all turns ended: %d queues wait, %d bytes are in flight, the sandbox's queue is %+v",
				len(o.ring), o.inFlight, o.queues[k])
		}
		o.mu.Unlock()
		time.Sleep(20 * time.Hour) // the burst is refilled
		for i := range 3 {
			o.ask(sandboxKey(fmt.Sprint(i)), 1).done()
		}
		if len(o.queues) != 3 {
			t.Errorf("%d queues are left, want only those of the 3 new sandboxes", len(o.queues))
		}
	})
}

// While execs of other sandboxes start and end, the output of a sandbox is limited, even within its burst.
func TestOutputYieldsToTheExecsOfOtherSandboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTurns(DefaultBurst, DefaultRate)
		loud, quiet := sandboxKey("loud"), sandboxKey("quiet")
		send := func(total int) time.Duration {
			begin := time.Now()
			for range total / jetstream.ChunkSize {
				turn, err := take(t.Context(), o, loud, jetstream.ChunkSize)
				if err != nil {
					t.Fatal(err)
				}
				turn.done()
			}
			return time.Since(begin)
		}
		o.yieldTo(loud)
		if d := send(32 * mebibyte); d != 0 {
			t.Errorf("while no other sandbox is active, 32 MiB took %s, want no time", d)
		}
		time.Sleep(time.Hour) // the burst is refilled
		o.yieldTo(quiet)
		size := int(o.pace) / 2
		if d := send(size); d < 400*time.Millisecond || d > 600*time.Millisecond {
			t.Errorf("while another sandbox is active, output for half a second took %s", d)
		}
		var turns []*turn
		for range 100 {
			turns = append(turns, o.ask(loud, jetstream.ChunkSize))
		}
		time.Sleep(200 * time.Millisecond)
		if n := granted(turns); n > maxSandboxInFlight/yieldPart/jetstream.ChunkSize {
			t.Errorf("while another sandbox is active, %d chunks are in flight, want at most %d", n,
				maxSandboxInFlight/yieldPart/jetstream.ChunkSize)
		}
		for _, turn := range turns {
			turn.done()
		}
		time.Sleep(yieldFor + time.Millisecond) // the other sandbox is no longer active
		if d := send(32 * mebibyte); d != 0 {
			t.Errorf("after the other sandbox was active, 32 MiB took %s, want no time", d)
		}
	})
}
