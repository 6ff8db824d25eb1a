package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
)

const mebibyte = 1 << 20

// granted says which of these turns have come.
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

func TestASandboxThatPrintsALotHasOneChunkBeforeAnothersNext(t *testing.T) {
	o := newOutlet(DefaultOutputBurst, DefaultOutputRate)
	loud, quiet := key{Tenant: "t", ID: "loud"}, key{Tenant: "t", ID: "quiet"}
	var loudTurns []*turn
	for range 1000 { // as many execs
		loudTurns = append(loudTurns, o.ask(loud, jetstream.ChunkSize))
	}
	if n := granted(loudTurns); n != outletShare/jetstream.ChunkSize {
		t.Fatalf("%d chunks of one sandbox are on their way", n)
	}
	if q := o.ask(quiet, 100); granted([]*turn{q}) != 1 {
		t.Fatal("another sandbox waits behind it")
	}
	// Once everything is on its way that may be, they take turns.
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
		t.Errorf("the loud one had %d turns, the quiet one %d", l, q)
	}
	if o.onWay > outletWindow+jetstream.ChunkSize {
		t.Errorf("%d bytes are on their way", o.onWay)
	}
}

func TestExecsOfASandboxTakeTurns(t *testing.T) {
	o := newOutlet(DefaultOutputBurst, DefaultOutputRate)
	k := key{Tenant: "t", ID: "s"}
	var order strings.Builder
	turns := map[string]*turn{}
	for _, exec := range []string{"a", "b", "c"} {
		turns[exec] = o.ask(k, outletShare) // one at a time
	}
	for range 9 {
		for _, exec := range []string{"a", "b", "c"} {
			if granted([]*turn{turns[exec]}) == 1 {
				order.WriteString(exec)
				before := turns[exec]
				turns[exec] = o.ask(k, outletShare)
				before.done()
			}
		}
	}
	if !strings.HasPrefix(order.String(), "abcabcabc") {
		t.Errorf("the turns are %s", order.String())
	}
}

func TestAfterItsBurstASandboxGetsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutlet(8*mebibyte, 2*mebibyte)
		send := func(k key, total int) time.Duration {
			begin := time.Now()
			for range total / jetstream.ChunkSize {
				turn, err := o.take(t.Context(), k, jetstream.ChunkSize)
				if err != nil {
					t.Fatal(err)
				}
				turn.done()
			}
			return time.Since(begin).Round(100 * time.Millisecond)
		}
		k := key{Tenant: "t", ID: "s"}
		if d := send(k, 8*mebibyte); d != 0 {
			t.Errorf("its burst took %s", d)
		}
		if d := send(k, 20*mebibyte); d < 9*time.Second || d > 11*time.Second {
			t.Errorf("20 MiB after it took %s", d)
		}
		if d := send(key{Tenant: "t", ID: "other"}, 8*mebibyte); d != 0 {
			t.Errorf("another sandbox's burst took %s", d)
		}
		time.Sleep(5 * time.Second) // it has its burst again
		if d := send(k, 8*mebibyte); d > time.Second {
			t.Errorf("its burst took %s later", d)
		}
		// A message of one byte is no less work.
		time.Sleep(5 * time.Second)
		begin := time.Now()
		for range 2 * 8 * mebibyte / messageCosts {
			turn, _ := o.take(t.Context(), k, 1)
			turn.done()
		}
		if d := time.Since(begin); d < 3*time.Second {
			t.Errorf("messages of a byte are as many as they like: %s", d)
		}
	})
}

func TestATurnThatNobodyWantsAnyMoreIsNoOnesBurden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutlet(1, 1)
		k := key{Tenant: "t", ID: "s"}
		first := o.ask(k, 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.take(ctx, k, 100); err == nil {
			t.Fatal("a turn came beyond the rate")
		}
		first.done()
		first.done()
		o.mu.Lock()
		if len(o.ring) != 0 || o.onWay != 0 || o.queues[k].onWay != 0 || len(o.queues[k].waiting) != 0 {
			t.Errorf("%+v", o)
		}
		o.mu.Unlock()
		time.Sleep(20 * time.Hour)
		for i := range 3 {
			o.ask(key{Tenant: "t", ID: fmt.Sprint(i)}, 1).done()
		}
		if len(o.queues) != 3 {
			t.Errorf("%d sandboxes are remembered", len(o.queues))
		}
	})
}

// While execs of several sandboxes begin and end, output goes out at a pace, also within a burst.
func TestOutputLeavesRoomForTheExecsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutlet(DefaultOutputBurst, DefaultOutputRate)
		loud, quiet := key{Tenant: "t", ID: "loud"}, key{Tenant: "t", ID: "quiet"}
		send := func(total int) time.Duration {
			begin := time.Now()
			for range total / jetstream.ChunkSize {
				turn, err := o.take(t.Context(), loud, jetstream.ChunkSize)
				if err != nil {
					t.Fatal(err)
				}
				turn.done()
			}
			return time.Since(begin)
		}
		o.worked(loud)
		if d := send(32 * mebibyte); d != 0 {
			t.Errorf("a sandbox alone waits %s", d)
		}
		time.Sleep(time.Hour) // its exec prints on
		o.worked(quiet)
		size := int(o.pace) / 2
		if d := send(size); d < 400*time.Millisecond || d > 600*time.Millisecond {
			t.Errorf("half of what goes out in a second took %s beside another sandbox", d)
		}
		var turns []*turn
		for range 100 {
			turns = append(turns, o.ask(loud, jetstream.ChunkSize))
		}
		time.Sleep(200 * time.Millisecond)
		if n := granted(turns); n > outletShare/outletLess/jetstream.ChunkSize {
			t.Errorf("%d chunks are on their way beside another sandbox", n)
		}
		for _, turn := range turns {
			turn.done()
		}
		time.Sleep(busyFor + time.Millisecond) // the other one rests
		if d := send(32 * mebibyte); d != 0 {
			t.Errorf("a sandbox alone waits %s again", d)
		}
	})
}
