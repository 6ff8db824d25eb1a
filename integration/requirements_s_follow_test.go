package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func TestS5_ShutdownEndsWithFollowersAttached(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Coordinators: -1})
	c := f.Coordinator("c1", fleet.Role{})
	f.Connect()
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	s := f.Create("s5")
	x, err := s.Start(ctx, script("while :; do echo tick; usleep 10000; done"))
	if err != nil {
		t.Fatal(err)
	}
	following, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range f.Client.Sandbox("s5").Events(following, sdk.WithFollow(true)) {
			}
		})
		wg.Go(func() {
			for range x.Output(following, sdk.WithFollow(true)) {
			}
		})
	}
	stuck := &blockedWriter{release: make(chan struct{})}
	wg.Go(func() { _, _ = x.Wait(following, sdk.WithStdout(stuck)) }) // returns when following ends and stuck is released
	// Returns when following ends: the sandbox is never stopped.
	wg.Go(func() { _ = s.WaitStopped(following) })

	for _, p := range []*fleet.Process{w, c} {
		begin := time.Now()
		p.Stop()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s took %s to end", p.Name, took)
		}
	}
	stop()
	close(stuck.release)
	wg.Wait()

	// The exec has continued without readers. Its output is complete.
	c.Restart()
	w.Restart()
	if err := x.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := x.Wait(ctx, sdk.WithCollect(64<<20))
	if r == nil || r.State != protocol.ExecStateCancelled ||
		string(r.Stdout) != strings.Repeat("tick\n", int(r.StdoutBytes)/5) || r.Incomplete {
		t.Errorf("the exec without readers: %v, %+v", err, r)
	}
	f.Judge()
}

func TestS15_FollowingAnIdleSandboxCostsNextToNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Servers: 1})
	ctx := f.Context(time.Minute)
	f.Create("short")
	s := f.Create("long")
	for range 300 {
		if _, err := s.Start(ctx, script("true")); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually(30*time.Second, "all execs have ended", func() error {
		now, err := f.Client.Get(ctx, "long")
		if err == nil && now.Info().ActiveExecs > 0 {
			err = fmt.Errorf("%d have not ended", now.Info().ActiveExecs)
		}
		return err
	})
	before := consumersOf(f)
	cost := map[string]server.ConnInfo{}
	for _, id := range []string{"short", "long"} {
		client, err := sdk.Connect(ctx, f.Options(sdk.Options{Name: id}))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		following, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range client.Sandbox(id).Events(following, sdk.WithFollow(true)) {
				}
			})
		}
		defer wg.Wait()
		defer stop()
		begin := quietConnection(f, id)
		<-time.After(6 * time.Second) // the measured interval
		cost[id] = connection(f, id)
		// All followers of a sandbox share a check for unpublished events: a server may die after storing an event and
		// before publishing it. During the interval the check runs once or twice, with two requests each time.
		in, out := cost[id].InMsgs-begin.InMsgs, cost[id].OutMsgs-begin.OutMsgs
		if in > 4 || out > 6 {
			t.Errorf("in 6 s of silence 20 followers of the %s history sent %d messages and got %d", id, in, out)
		}
		if bytes := cost[id].OutBytes - begin.OutBytes; bytes > 4096 {
			t.Errorf("in 6 s of silence 20 followers of the %s history got %d bytes", id, bytes)
		}
		t.Logf("in 6 s of silence 20 followers of the %s history sent %d messages and got %d", id, in, out)
	}
	if short, long := cost["short"].NumSubs, cost["long"].NumSubs; short != long {
		t.Errorf("20 followers of a short history hold %d subscriptions, of a long one %d", short, long)
	}
	if after := consumersOf(f); after > before { // a smaller number is possible: a consumer of the fleet may have ended
		t.Errorf("40 followers hold %d consumers", after-before)
	}
}

// connection returns the server's view of a client's connection.
func connection(f *fleet.Fleet, name string) server.ConnInfo {
	f.TB.Helper()
	conns, err := f.Servers[0].Connz(&server.ConnzOptions{})
	if err != nil {
		f.TB.Fatal(err)
	}
	for _, c := range conns.Conns {
		if c.Name == name {
			return *c
		}
	}
	f.TB.Fatalf("%s is not connected", name)
	return server.ConnInfo{}
}

// quietConnection waits until a client has received everything that it asked for and no message is in flight.
func quietConnection(f *fleet.Fleet, name string) (last server.ConnInfo) {
	f.TB.Helper()
	var since time.Time
	f.Eventually(20*time.Second, name+" is quiet", func() error {
		now := connection(f, name)
		if since.IsZero() || now.InMsgs != last.InMsgs || now.OutMsgs != last.OutMsgs {
			last, since = now, time.Now()
		}
		if time.Since(since) < 700*time.Millisecond {
			return errors.New("messages are still in flight")
		}
		return nil
	})
	return last
}

func consumersOf(f *fleet.Fleet) (n int) {
	f.TB.Helper()
	for _, s := range streamsOf(f) {
		n += len(s.Consumer)
	}
	return n
}

func TestS16_EventsCarryTheStateAndMarkTheReplay(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s16")
	mustExec(ctx, t, s, script("true"))
	old := history(ctx, t, f.Client, "s16")
	begun := make(chan struct{})
	var seen []protocol.Event
	done := make(chan error, 1)
	go func() {
		for e, err := range f.Client.Sandbox("s16").Events(ctx, sdk.WithFrom(3), sdk.WithFollow(true)) {
			if err != nil {
				done <- err
				return
			}
			if seen = append(seen, e); e.Sequence == uint64(len(old)) {
				close(begun)
			}
		}
		done <- nil
	}()
	select {
	case <-begun:
	case err := <-done:
		t.Fatalf("the events ended before the replay was complete: %v", err)
	}
	_, _ = s.Exec(ctx, script("exit 9")) // the test needs only the events of this exec
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var state protocol.State
	for _, e := range old[:2] {
		if err := state.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range seen {
		if e.Sequence != uint64(i+3) {
			t.Fatalf("event %d is at index %d of a follow from 3", e.Sequence, i)
		}
		if e.Replay != (int(e.Sequence) <= len(old)) {
			t.Errorf("event %d has replay %v, with %d events before the follow", e.Sequence, e.Replay, len(old))
		}
		if err := state.Apply(&e); err != nil || e.State != state.Sandbox.State || e.State == "" {
			t.Errorf("event %d %s carries state %q, the fold gives %q: %v", e.Sequence, e.Kind, e.State,
				state.Sandbox.State, err)
		}
	}
	last := seen[len(seen)-1].Sequence
	for _, from := range []uint64{last + 2, 1 << 40} {
		for _, follow := range []bool{false, true} {
			var got error
			for _, err := range f.Client.Sandbox("s16").Events(ctx, sdk.WithFrom(from), sdk.WithFollow(follow)) {
				got = err
			}
			wantError(t, fmt.Sprintf("events from %d of %d", from, last), got, protocol.OutOfRange,
				protocol.ReasonSequenceBeyondEnd, "")
		}
	}
	for e, err := range f.Client.Sandbox("s16").Events(ctx, sdk.WithFrom(last+1)) {
		t.Errorf("reading past the end returned %v, %v; want nothing", e, err)
	}
	for _, err := range f.Client.Sandbox("never-was").Events(ctx) {
		wantError(t, "events of an unknown sandbox", err, protocol.NotFound, "", "")
	}
	f.Judge()
}

func TestS18_WhatIsReadBackIsComplete(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := protocol.SandboxSpec{Image: fleet.Image, Labels: map[string]string{"team": "a"},
		Env: map[string]string{"A": "b"}, User: "box", Cwd: "/tmp"}
	made, err := f.Client.Create(ctx, spec, sdk.WithID("s18"))
	if err != nil {
		t.Fatal(err)
	}
	want := spec
	want.Resolve()
	s, err := f.Client.Get(ctx, "s18")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*sdk.Sandbox{made, s} {
		if got := h.Info().Spec; string(protocol.Encode(&got)) != string(protocol.Encode(&want)) {
			t.Errorf("the handle shows %+v, want %+v", got, want)
		}
	}
	if i := s.Info(); i.CreatedAt.IsZero() || i.AssignedAt.Before(i.CreatedAt) || i.ReadyAt.Before(i.AssignedAt) ||
		i.Image == "" || i.Container == "" || i.Subnet == "" || i.Worker == "" {
		t.Errorf("the handle is incomplete: %+v", i)
	}

	for i := range 7 {
		text := "true"
		if i == 3 {
			text = "sleep 100"
		}
		if i == 5 {
			// The exec fails, because the user does not exist.
			_, _ = s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"},
				sdk.WithID("x5"))
			continue
		}
		x, err := s.Start(ctx, script(text), sdk.WithID(fmt.Sprintf("x%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		if i != 3 {
			if _, err := x.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(opts ...sdk.ExecsOption) (ids []string, pages int) {
		for next := ""; ; {
			page, err := s.ExecsPage(ctx, append(opts, sdk.WithPage(next))...)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, x := range page.Items {
				i := x.Info()
				ids = append(ids, i.ID)
				ended := i.State.Terminal()
				if i.AcceptedAt.IsZero() || i.State == protocol.ExecStateFinished &&
					(i.StartedAt.IsZero() || i.EndedAt.Before(i.StartedAt)) || ended == i.EndedAt.IsZero() ||
					i.Spec.Grace == 0 {
					t.Errorf("exec %s has no times or no defaults: %+v", i.ID, i)
				}
			}
			if next = page.Next; next == "" {
				return ids, pages
			}
		}
	}
	if ids, pages := list(sdk.WithPageSize(3)); strings.Join(ids, " ") != "x6 x5 x4 x3 x2 x1 x0" || pages != 3 {
		t.Errorf("all execs in %d pages: %q", pages, ids)
	}
	if ids, _ := list(sdk.WithExecStates(protocol.ExecStateFinished), sdk.WithPageSize(2)); strings.Join(ids,
		" ") != "x6 x4 x2 x1 x0" {
		t.Errorf("finished execs: %q", ids)
	}
	if ids, _ := list(sdk.WithExecStates(protocol.ExecStateFailed, protocol.ExecStateAccepted,
		protocol.ExecStateRunning)); strings.Join(ids, " ") != "x5 x3" {
		t.Errorf("failed and running execs: %q", ids)
	}

	// Lists of sandboxes also have pages, label selectors and state filters.
	for i := range 5 {
		spec := spec
		spec.Labels = map[string]string{"team": "b", "n": fmt.Sprint(i % 2)}
		spec.Image = "boxfleet/there-is-no-such-image:x" // there is no such image, so the sandbox fails soon
		_, err := f.Client.Create(ctx, spec, sdk.WithID(fmt.Sprintf("b%d", i)))
		if err == nil {
			t.Fatal("a sandbox without an image")
		}
	}
	all := func(opts []sdk.ListOption) string {
		var ids []string
		for s, err := range f.Client.List(ctx, opts...) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, s.ID())
		}
		return strings.Join(ids, " ")
	}
	for want, opts := range map[string][]sdk.ListOption{
		"b4 b3 b2 b1 b0 s18": {sdk.WithPageSize(2)},
		"b4 b2 b0":           {sdk.WithLabels(map[string]string{"team": "b", "n": "0"}), sdk.WithPageSize(1)},
		"s18":                {sdk.WithStates(protocol.StateReady)},
		"b4 b3 b2 b1 b0":     {sdk.WithStates(protocol.StateFailed)},
		"":                   {sdk.WithLabels(map[string]string{"team": ""})},
	} {
		if got := all(opts); got != want {
			t.Errorf("the list is %q, want %q", got, want)
		}
	}
}

func TestS19_OnlyTheCallersContextEndsAWait(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	client, err := sdk.Connect(f.Context(time.Minute),
		f.Options(sdk.Options{RequestTimeout: 100 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	short, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = client.Create(short, f.Spec(), sdk.WithID("s19")) // there is no worker yet
	wantError(t, "a create whose context ends", err, protocol.DeadlineExceeded, "", "")
	// If the call took ten times as long, something other than its context ended it.
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took < time.Second ||
		took > 10*time.Second {
		t.Errorf("the create ended after %s with %v", took, err)
	}
	f.Eventually(10*time.Second, "the create continues without its caller", func() error {
		_, err := f.Client.Get(f.Context(5*time.Second), "s19")
		return err
	})

	endless := context.Background()
	ready := make(chan error, 1)
	go func() { ready <- client.Sandbox("s19").WaitReady(endless) }()
	select {
	case err := <-ready:
		t.Fatalf("an unbounded wait ended: %v", err)
	case <-time.After(2 * time.Second): // many times the request timeout
	}
	f.Worker("w1", fleet.Role{})
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	s := client.Sandbox("s19")
	r, err := s.Exec(endless, script("sleep 2; exit 7"))
	if err != nil || code(r) != "7" {
		t.Errorf("an exec longer than the request timeout: %v, exit code %s", err, code(r))
	}

	// A wait for a state that cannot be reached any more ends with the reason.
	go func() { ready <- s.WaitStopped(endless) }()
	if err := s.Delete(endless); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a wait for the stop of a deleted sandbox", <-ready, protocol.FailedPrecondition,
		protocol.ReasonSandboxDeleted, "")
	wantError(t, "a wait for an unknown sandbox", client.Sandbox("never").WaitReady(endless), protocol.NotFound,
		"", "")
	spec := f.Spec()
	spec.Image = "boxfleet/there-is-no-such-image:x"
	failed, err := client.Create(endless, spec)
	if failed == nil || failed.Info().State != protocol.StateFailed {
		t.Errorf("a create that fails: %v", err)
	}
	wantNoImage(t, err)
}
