package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// What the single-host ancestor got wrong, each named by its line.

// history reads all events of a sandbox.
func history(ctx context.Context, t *testing.T, c *sdk.Client, id string) []protocol.Event {
	t.Helper()
	var events []protocol.Event
	for e, err := range c.Sandbox(id).Events(ctx) {
		if err != nil {
			t.Fatalf("history of %s: %v", id, err)
		}
		events = append(events, e)
	}
	return events
}

// kinds are the kinds of events, in order.
func kinds(events []protocol.Event) []protocol.Kind {
	list := make([]protocol.Kind, len(events))
	for i, e := range events {
		list[i] = e.Kind
	}
	return list
}

// count says how many events are of a kind.
func count(events []protocol.Event, kind protocol.Kind) int {
	n := 0
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// find returns the first event of a kind.
func find(t *testing.T, events []protocol.Event, kind protocol.Kind) protocol.Event {
	t.Helper()
	i := slices.IndexFunc(events, func(e protocol.Event) bool { return e.Kind == kind })
	if i < 0 {
		t.Fatalf("no %s in %v", kind, kinds(events))
	}
	return events[i]
}

// wantNoImage fails the test unless err says that an image is not to be had: that no registry has it,
// or, on a machine that reaches none, that it could not be pulled.
func wantNoImage(t *testing.T, err error) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Reason != protocol.ReasonImageNotFound && e.Reason != protocol.ReasonRegistryUnreachable {
		t.Errorf("a sandbox without an image: got %v", err)
	}
}

// becomesEmpty fails the test when something of the fleet is on the engine or in a worker's
// directory, also a while later.
func becomesEmpty(f *fleet.Fleet, w *fleet.Process) {
	f.TB.Helper()
	f.Eventually(10*time.Second, "nothing is left on the host", func() error {
		if left := append(f.Objects(w.Role.Engine), f.Directories(w)...); len(left) > 0 {
			return fmt.Errorf("there is still %q", left)
		}
		return nil
	})
}

func TestS1_ADeleteDuringACreateWins(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	// after waits for a moment of the create of a sandbox: for an event, or for some time.
	event := func(n int) func(string) {
		return func(id string) {
			for e, err := range f.Client.Sandbox(id).Events(ctx, sdk.WithFollow(true)) {
				if err != nil || int(e.Sequence) >= n {
					return
				}
			}
		}
	}
	delay := func(d time.Duration) func(string) {
		return func(string) {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
	}
	moments := []func(string){}
	for n := 1; n <= 7; n++ { // accepted, assigned, four phases, ready
		moments = append(moments, event(n))
	}
	for d := time.Duration(0); d < 400*time.Millisecond; d += 40 * time.Millisecond {
		moments = append(moments, delay(d))
	}
	during := 0
	for i, moment := range moments {
		id := fmt.Sprintf("s1-%d", i)
		s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id), sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		moment(id)
		if err := s.Delete(ctx); err != nil {
			t.Fatalf("moment %d: %v", i, err)
		}
		events := history(ctx, t, f.Client, id)
		asked := slices.Index(kinds(events), protocol.SandboxDeleteRequested)
		if at := slices.Index(kinds(events), protocol.SandboxReady); at > asked || asked < 0 || events[len(events)-1].Kind != protocol.SandboxDeleted {
			t.Errorf("moment %d: %v", i, kinds(events))
		} else if at < 0 {
			during++
		}
	}
	if during < 6 {
		t.Errorf("only %d of %d deletes came during the create", during, len(moments))
	}
	becomesEmpty(f, w)
	f.Judge()
}

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
	wg.Go(func() { _, _ = x.Wait(following, sdk.WithStdout(stuck)) }) // ends with following, when it is released
	wg.Go(func() { _ = s.WaitStopped(following) })                    // it never is

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

	// The exec went on without them, and its output is whole.
	c.Restart()
	w.Restart()
	if err := x.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := x.Wait(ctx, sdk.WithCollect(64<<20))
	if r == nil || r.State != protocol.ExecStateCancelled || string(r.Stdout) != strings.Repeat("tick\n", int(r.StdoutBytes)/5) || r.Incomplete {
		t.Errorf("the exec that was left alone: %v, %+v", err, r)
	}
	f.Judge()
}

func TestS7_NamesOnTheEngineCannotCollide(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	names := [][2]string{{"default", "abcd"}, {"default", "abcd-y"}, {"default", "abcd_y"}, {"default", "ABCD"}, {"t", "a-b"}, {"t-a", "b"}, {"t", "abcd"}}
	var boxes []*sdk.Sandbox
	for _, n := range names {
		c, err := sdk.Connect(ctx, sdk.Options{URL: f.URL(), Tenant: n[0]})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Create(ctx, f.Spec(), sdk.WithID(n[1]))
		if err != nil {
			t.Fatalf("%v: %v", n, err)
		}
		mustExec(ctx, t, s, script("echo "+n[0]+"/"+n[1]+" > /tmp/name"))
		boxes = append(boxes, s)
	}
	if objects := f.Objects(""); len(objects) != 2*len(names) {
		t.Errorf("%d sandboxes have %d containers and networks: %q", len(names), len(objects), objects)
	}
	if dirs := f.Directories(w); len(dirs) != len(names) {
		t.Errorf("%d sandboxes have the directories %q", len(names), dirs)
	}
	if err := boxes[0].Delete(ctx); err != nil {
		t.Fatal(err)
	}
	for i, s := range boxes[1:] {
		if got, want := mustExec(ctx, t, s, script("cat /tmp/name")), strings.Join(names[i+1][:], "/")+"\n"; got != want {
			t.Errorf("%q has the files of %q", want, got)
		}
	}
	f.Judge()
}

func TestS8_StopsAndDeletesComeInOrder(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	patient := f.Spec()
	patient.Grace = protocol.Duration(5 * time.Second)
	s, err := f.Client.Create(ctx, patient, sdk.WithID("s8"))
	if err != nil {
		t.Fatal(err)
	}
	deaf := script("trap '' TERM; echo deaf; while :; do sleep 100; done") // a stop lasts as long as the grace
	start := func() *sdk.Exec {
		x, err := s.Start(ctx, deaf)
		if err != nil {
			t.Fatal(err)
		}
		for range x.Output(ctx, sdk.WithFollow(true)) {
			return x
		}
		t.Fatal("no output")
		return nil
	}
	x := start()

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.Stop(ctx); err != nil {
				t.Errorf("one of several stops: %v", err)
			}
		})
	}
	f.Eventually(5*time.Second, "it is being stopped", func() error {
		now, err := f.Client.Get(ctx, "s8")
		if err == nil && now.Info().Desired != protocol.StateStopped {
			err = errors.New("not yet")
		}
		return err
	})
	_, err = s.Exec(ctx, script("true"), sdk.WithID("late"))
	wantError(t, "an exec while stopping", err, protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "")
	wg.Wait()
	events := history(ctx, t, f.Client, "s8")
	if count(events, protocol.SandboxStopRequested) != 1 || count(events, protocol.SandboxStopped) != 1 || events[len(events)-1].Kind != protocol.SandboxStopped {
		t.Errorf("four stops: %v", kinds(events))
	}
	r, err := x.Wait(ctx)
	if r == nil || r.State != protocol.ExecStateCancelled || r.Reason != protocol.ReasonSandboxStopped || code(r) != "137" {
		t.Errorf("the exec that was stopped: %v, %+v", err, r)
	}
	_, err = s.Exec(ctx, script("true"), sdk.WithID("late"))
	wantError(t, "an exec when stopped", err, protocol.FailedPrecondition, "", "")

	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	start()
	wg.Go(func() {
		// The delete may win before the sandbox is stopped: that ends the wait, with a reason.
		if err := s.Stop(ctx); err != nil && protocol.AsError(err).Code != protocol.FailedPrecondition {
			t.Errorf("a stop beside a delete: %v", err)
		}
	})
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	events = history(ctx, t, f.Client, "s8")
	if events[len(events)-1].Kind != protocol.SandboxDeleted || count(events, protocol.SandboxDeleteRequested) != 1 {
		t.Errorf("stop and delete together: %v", kinds(events))
	}
	if left := f.Objects(""); len(left) > 0 {
		t.Errorf("left on the engine: %q", left)
	}
	f.Judge()
}

func TestS9_IdleStopIsPunctualAndResumeResetsIt(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := fleet.Start(t, fleet.Options{Timing: coordinator.Timing{Scan: 200 * time.Millisecond}})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.IdleTTL = protocol.Duration(ttl)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s9"))
	if err != nil {
		t.Fatal(err)
	}
	// An exec that cannot be run is activity too. It comes long before the end of the idle time, and by
	// more than a scan after its beginning, so that the stop tells which of the two counts.
	f.Eventually(5*time.Second, "some idle time passes", func() error {
		if idle := time.Since(s.Info().ActiveAt); idle < ttl/4 {
			return fmt.Errorf("%s", idle)
		}
		return nil
	})
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"})
	if r == nil || r.State != protocol.ExecStateFailed {
		t.Fatalf("an exec of an unknown user: %v", err)
	}
	punctual := func(since time.Time) {
		t.Helper()
		if err := s.WaitStopped(ctx); err != nil {
			t.Fatal(err)
		}
		events := history(ctx, t, f.Client, "s9")
		var asked protocol.Event
		for _, e := range events {
			if e.Kind == protocol.SandboxStopRequested {
				asked = e
			}
		}
		if idle := asked.Time.Sub(since); asked.Reason != protocol.ReasonIdleTTL || idle < ttl-100*time.Millisecond || idle > ttl+5*time.Second {
			t.Errorf("stopped with reason %q after %s of idling, want %s to %s", asked.Reason, idle, ttl, ttl+5*time.Second)
		}
	}
	punctual(r.Ended)
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	punctual(s.Info().ReadyAt)
	f.Judge()
}

func TestS12_WhatMustNotBeMountedCannotBe(t *testing.T) {
	t.Parallel()
	allowed := t.TempDir()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	link := func(name, to string) string {
		path := filepath.Join(allowed, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := syscall.Mkfifo(filepath.Join(allowed, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The operator allows more than is wise: the socket's directory, and the state directory.
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed, "/run", "/var/run", f.Dir}})
	for what, source := range map[string]string{
		"the socket":                        "/var/run/docker.sock",
		"the socket by its real path":       "/run/docker.sock",
		"the socket by a link":              link("socket", "/var/run/docker.sock"),
		"the socket's directory":            "/var/run",
		"the socket's directory by a link":  link("run", "/run"),
		"the state directory":               w.Role.StateDir,
		"a directory of the state":          filepath.Join(w.Role.StateDir, f.Conn.Deployment()),
		"what holds the state directory":    f.Dir,
		"the state directory by a link":     link("state", w.Role.StateDir),
		"the root by a link":                link("root", "/"),
		"a link out of the allow-list":      link("out", "/etc"),
		"below a link out":                  filepath.Join(allowed, "out", "ssl"),
		"a way out by dots":                 allowed + "/../../etc",
		"what was never allowed":            "/etc",
		"a name that begins as an allowed":  allowed + "x",
		"neither a file nor a directory":    filepath.Join(allowed, "fifo"),
		"a link through another link's way": link("twice", filepath.Join(allowed, "out")),
	} {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: "/" + strings.Trim(allowed, "/"), Target: "/fine"}, {Source: source, Target: "/m"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, what, err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[1].source")
	}
	for _, root := range []string{"/", "//", "/.", "/etc/.."} {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: root, Target: "/m"}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, root, err, protocol.InvalidArgument, "", "spec.mounts[0].source")
	}
	spec := f.Spec()
	spec.Mounts = []protocol.Mount{{Source: filepath.Join(allowed, "missing"), Target: "/m"}}
	_, err := f.Client.Create(ctx, spec)
	wantError(t, "what is not there", err, protocol.InvalidArgument, "", "spec.mounts[0].source")
	becomesEmpty(f, w)

	// A whole host cannot be allowed by an oversight.
	w.Stop()
	if err := os.Symlink("/", filepath.Join(f.Dir, "all")); err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{"/", filepath.Join(f.Dir, "all")} {
		p := f.Worker("w2", fleet.Role{AllowMounts: []string{all}, NoWait: true})
		if err := p.AwaitExit(10 * time.Second); err == nil || !strings.Contains(p.Log()+err.Error(), "mounts.allow[0]") {
			t.Errorf("a worker that allows %s: %v", all, err)
		}
	}
}

func TestS13_RetentionTakesEverythingButTheID(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{CleanupTTL: 2 * time.Second, Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	stopped := f.Create("stopped")
	if _, err := stopped.Exec(ctx, script("head -c 100000 /dev/zero"), sdk.WithID("x")); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	spec := f.Spec()
	spec.Image = "boxfleet/there-is-no-such-image:x"
	failed, err := f.Client.Create(ctx, spec, sdk.WithID("failed"))
	if err == nil || failed == nil {
		t.Fatalf("a sandbox without an image: %v", err)
	}
	for _, id := range []string{"stopped", "failed"} {
		s := f.Client.Sandbox(id)
		if err := s.WaitDeleted(ctx); err != nil {
			t.Fatal(err)
		}
		if s.Info().Reason != protocol.ReasonCleanupTTL {
			t.Errorf("%s was deleted with reason %q", id, s.Info().Reason)
		}
		f.Eventually(10*time.Second, "the history of "+id+" is purged", func() error {
			batches, err := f.Client.Raw().History(ctx, id, 0)
			if err == nil && len(batches) != 1 {
				err = fmt.Errorf("%d messages are kept", len(batches))
			}
			return err
		})
		var got error
		for _, err := range f.Client.Sandbox(id).Events(ctx) {
			got = err
		}
		wantError(t, "the events of "+id, got, protocol.OutOfRange, protocol.ReasonSequenceNotKept, "")
		// The coordinator forgets it after it has purged the history.
		f.Eventually(5*time.Second, id+" is read back as purged", func() error {
			if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateDeleted || !s.Info().HistoryPurged {
				return fmt.Errorf("it is %s, history purged %v: %v", s.Info().State, s.Info().HistoryPurged, err)
			}
			return nil
		})
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID(id))
		wantError(t, "the id "+id+" again", err, protocol.AlreadyExists, "", "")
	}
	becomesEmpty(f, w)
	f.Eventually(5*time.Second, "the two ids are all that is kept", func() error {
		for stream, want := range map[string]int{
			protocol.StreamLogs: 0, "KV_" + protocol.BucketExecIDs: 0, "KV_" + protocol.BucketIDs: 2, protocol.StreamRequests: 0,
		} {
			if kept := messagesOf(f, stream); kept != want {
				return fmt.Errorf("%s has %d messages, want %d", stream, kept, want)
			}
		}
		return nil
	})
}

// messagesOf is how many messages a stream has.
func messagesOf(f *fleet.Fleet, stream string) int {
	f.TB.Helper()
	for _, s := range streamsOf(f) {
		if s.Name == stream {
			return int(s.State.Msgs)
		}
	}
	f.TB.Fatalf("no stream %s", stream)
	return 0
}

func streamsOf(f *fleet.Fleet) []server.StreamDetail {
	f.TB.Helper()
	info, err := f.Servers[0].Jsz(&server.JSzOptions{Streams: true, Consumer: true})
	if err != nil {
		f.TB.Fatal(err)
	}
	var streams []server.StreamDetail
	for _, a := range info.AccountDetails {
		streams = append(streams, a.Streams...)
	}
	return streams
}

func TestS14_AnAcceptThatFailsHalfWayLeavesNoPhantom(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Coordinators: -1})
	c := f.Coordinator("c1", fleet.Role{CrashAt: "create-before-append"})
	f.Connect()
	f.Worker("w1", fleet.Role{})
	ctx := f.Context(time.Minute)
	done := make(chan error, 1)
	go func() {
		_, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("s14"))
		done <- err
	}()
	c.AwaitKilled(30 * time.Second) // the id is reserved, and there is no record
	c = f.Coordinator("c2", fleet.Role{CrashAt: "exec-before-append"})
	if err := <-done; err != nil {
		t.Fatalf("the create after the crash: %v", err)
	}
	s := f.Client.Sandbox("s14")
	go func() {
		_, err := s.Exec(ctx, script("echo x >> /tmp/runs"), sdk.WithID("x"))
		done <- err
	}()
	c.AwaitKilled(30 * time.Second)
	f.Coordinator("c3", fleet.Role{})
	if err := <-done; err != nil {
		t.Fatalf("the exec after the crash: %v", err)
	}
	if got := mustExec(ctx, t, s, script("cat /tmp/runs")); got != "x\n" {
		t.Errorf("the exec ran %d times", strings.Count(got, "x"))
	}
	events := history(ctx, t, f.Client, "s14")
	if count(events, protocol.SandboxAccepted) != 1 || count(events, protocol.ExecFailed) != 0 || count(events, protocol.SandboxFailed) != 0 {
		t.Errorf("phantoms: %v", kinds(events))
	}

	// A refused exec burns no id.
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := s.Exec(ctx, script("true"), sdk.WithID("refused"))
	wantError(t, "an exec of a stopped sandbox", err, protocol.FailedPrecondition, "", "")
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(ctx, script("true"), sdk.WithID("refused")); err != nil {
		t.Errorf("the id of a refused exec: %v", err)
	}
	f.Judge()
}

func TestS15_FollowingCostsNextToNothingWhileNothingHappens(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
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
			err = fmt.Errorf("%d have not", now.Info().ActiveExecs)
		}
		return err
	})
	before := consumersOf(f)
	cost := map[string]server.ConnInfo{}
	for _, id := range []string{"short", "long"} {
		client, err := sdk.Connect(ctx, sdk.Options{URL: f.URL(), Name: id})
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
		<-time.After(6 * time.Second) // the measurement
		cost[id] = connection(f, id)
		// Followers of a sandbox look together whether a server that died told nobody of something: once or
		// twice in this time, and with two questions each.
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
	if after := consumersOf(f); after > before { // one that the fleet needed before may have ended
		t.Errorf("40 followers hold %d consumers", after-before)
	}
}

// connection is what the server knows of a client's connection.
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

// quietConnection waits until a client has what it asked for, and nothing is on its way.
func quietConnection(f *fleet.Fleet, name string) (last server.ConnInfo) {
	f.TB.Helper()
	var since time.Time
	f.Eventually(20*time.Second, name+" is quiet", func() error {
		now := connection(f, name)
		if since.IsZero() || now.InMsgs != last.InMsgs || now.OutMsgs != last.OutMsgs {
			last, since = now, time.Now()
		}
		if time.Since(since) < 700*time.Millisecond {
			return errors.New("messages come and go")
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

func TestS16_EventsCarryTheStateAndSayWhatIsReplay(t *testing.T) {
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
		t.Fatalf("the events ended before what was there before: %v", err)
	}
	_, _ = s.Exec(ctx, script("exit 9")) // the result does not matter here
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
			t.Fatalf("event %d comes at place %d of a follow from 3", e.Sequence, i)
		}
		if e.Replay != (int(e.Sequence) <= len(old)) {
			t.Errorf("event %d, of which %d were there before, says replay %v", e.Sequence, len(old), e.Replay)
		}
		if err := state.Apply(&e); err != nil || e.State != state.Sandbox.State || e.State == "" {
			t.Errorf("event %d %s carries state %q, the fold gives %q: %v", e.Sequence, e.Kind, e.State, state.Sandbox.State, err)
		}
	}
	last := seen[len(seen)-1].Sequence
	for _, from := range []uint64{last + 2, 1 << 40} {
		for _, follow := range []bool{false, true} {
			var got error
			for _, err := range f.Client.Sandbox("s16").Events(ctx, sdk.WithFrom(from), sdk.WithFollow(follow)) {
				got = err
			}
			wantError(t, fmt.Sprintf("events from %d of %d", from, last), got, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd, "")
		}
	}
	for e, err := range f.Client.Sandbox("s16").Events(ctx, sdk.WithFrom(last+1)) {
		t.Errorf("from behind the end came %v, %v; want nothing", e, err)
	}
	for _, err := range f.Client.Sandbox("never-was").Events(ctx) {
		wantError(t, "events of no sandbox", err, protocol.NotFound, "", "")
	}
	f.Judge()
}

func TestS17_FailedMeansThatItCouldNotBeRun(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s17")
	for _, text := range []string{"exit 1", "exit 127", "false"} {
		r, err := s.Exec(ctx, script(text))
		if err != nil || r.State != protocol.ExecStateFinished || r.Error != nil {
			t.Errorf("%s: %v, %s", text, err, r.State)
		}
	}
	for what, c := range map[string]struct {
		spec   protocol.ExecSpec
		reason string
		field  string
	}{
		"unknown user":      {protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"}, protocol.ReasonUserUnknown, "spec.user"},
		"missing directory": {protocol.ExecSpec{Command: []string{"true"}, Cwd: "/not/there"}, protocol.ReasonCwdInvalid, "spec.cwd"},
	} {
		r, err := s.Exec(ctx, c.spec)
		if r == nil || r.State != protocol.ExecStateFailed || r.ExitCode != nil {
			t.Errorf("%s: %+v, want failed without an exit code", what, r)
		}
		wantError(t, what, err, protocol.FailedPrecondition, c.reason, c.field)
	}
	mustExec(ctx, t, s, script("true"))
}

func TestS18_WhatIsReadBackIsWhole(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	spec := protocol.SandboxSpec{Image: fleet.Image, Labels: map[string]string{"team": "a"}, Env: map[string]string{"A": "b"}, User: "box", Cwd: "/tmp"}
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
	if i := s.Info(); i.CreatedAt.IsZero() || i.AssignedAt.Before(i.CreatedAt) || i.ReadyAt.Before(i.AssignedAt) || i.Image == "" || i.Container == "" || i.Subnet == "" || i.Worker == "" {
		t.Errorf("the handle lacks something: %+v", i)
	}

	for i := range 7 {
		text := "true"
		if i == 3 {
			text = "sleep 100"
		}
		if i == 5 {
			_, _ = s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"}, sdk.WithID("x5"))
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
				if i.AcceptedAt.IsZero() || i.State == protocol.ExecStateFinished && (i.StartedAt.IsZero() || i.EndedAt.Before(i.StartedAt)) || ended == i.EndedAt.IsZero() || i.Spec.Grace == 0 {
					t.Errorf("exec %s lacks times or defaults: %+v", i.ID, i)
				}
			}
			if next = page.Next; next == "" {
				return ids, pages
			}
		}
	}
	if ids, pages := list(sdk.WithPageSize(3)); strings.Join(ids, " ") != "x6 x5 x4 x3 x2 x1 x0" || pages != 3 {
		t.Errorf("all execs on %d pages: %q", pages, ids)
	}
	if ids, _ := list(sdk.WithExecStates(protocol.ExecStateFinished), sdk.WithPageSize(2)); strings.Join(ids, " ") != "x6 x4 x2 x1 x0" {
		t.Errorf("finished execs: %q", ids)
	}
	if ids, _ := list(sdk.WithExecStates(protocol.ExecStateFailed, protocol.ExecStateAccepted, protocol.ExecStateRunning)); strings.Join(ids, " ") != "x5 x3" {
		t.Errorf("failed and running execs: %q", ids)
	}

	// Sandboxes have pages, label selectors and state filters too.
	for i := range 5 {
		spec := spec
		spec.Labels = map[string]string{"team": "b", "n": fmt.Sprint(i % 2)}
		spec.Image = "boxfleet/there-is-no-such-image:x" // quick: they fail
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

func TestS19_WaitingEndsWithTheCallersContextOnly(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	client, err := sdk.Connect(f.Context(time.Minute), sdk.Options{URL: f.URL(), RequestTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	short, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = client.Create(short, f.Spec(), sdk.WithID("s19")) // there is no worker yet
	wantError(t, "a create whose context ends", err, protocol.DeadlineExceeded, "", "")
	// Ten times as long is not the context's end any more.
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took < time.Second || took > 10*time.Second {
		t.Errorf("it ended after %s with %v", took, err)
	}
	f.Eventually(10*time.Second, "the create goes on without its caller", func() error {
		_, err := f.Client.Get(f.Context(5*time.Second), "s19")
		return err
	})

	endless := context.Background()
	ready := make(chan error, 1)
	go func() { ready <- client.Sandbox("s19").WaitReady(endless) }()
	select {
	case err := <-ready:
		t.Fatalf("a wait that nobody bounded ended: %v", err)
	case <-time.After(2 * time.Second): // many request timeouts
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

	// A wait for what can no longer come ends with the reason.
	go func() { ready <- s.WaitStopped(endless) }()
	if err := s.Delete(endless); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a wait for the stop of what was deleted", <-ready, protocol.FailedPrecondition, protocol.ReasonSandboxDeleted, "")
	wantError(t, "a wait for a sandbox that never was", client.Sandbox("never").WaitReady(endless), protocol.NotFound, "", "")
	spec := f.Spec()
	spec.Image = "boxfleet/there-is-no-such-image:x"
	failed, err := client.Create(endless, spec)
	if failed == nil || failed.Info().State != protocol.StateFailed {
		t.Errorf("a create that fails: %v", err)
	}
	wantNoImage(t, err)
}

func TestS20_TheSDKLinksNeitherServerNorEngine(t *testing.T) {
	t.Parallel()
	deps, err := exec.Command("go", "list", "-deps", "github.com/boxfleet/boxfleet/sdk").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, deps)
	}
	for _, foreign := range []string{"github.com/docker/", "github.com/nats-io/nats-server", "boxfleet/coordinator", "boxfleet/worker", "boxfleet/supervisor"} {
		for dep := range strings.Lines(string(deps)) {
			if strings.Contains(dep, foreign) {
				t.Errorf("the SDK links %s", dep)
			}
		}
	}

	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s20")
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, create := f.Client.Create(ctx, protocol.SandboxSpec{})
	_, get := f.Client.Get(ctx, "never-was")
	_, badID := f.Client.Get(ctx, "a.b")
	_, run := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-has-this-name"})
	_, ended := s.Exec(over, script("true"))
	_, page := f.Client.ListPage(ctx, sdk.WithPage("nonsense"))
	_, labels := f.Client.DeleteByLabels(ctx, nil)
	_, option := s.Exec(ctx, script("true"), sdk.WithCollect(-1))
	_, copied := f.Client.Upload(ctx, "/not/there", "/x")
	_, nobody := sdk.Connect(over, sdk.Options{URL: "nats://127.0.0.1:1"})
	_, exit := s.GetExec(ctx, "never-was")
	for what, err := range map[string]error{
		"create": create, "get": get, "bad id": badID, "exec": run, "ended context": ended, "page": page, "labels": labels,
		"option": option, "copy": copied, "connect": nobody, "get exec": exit, "cancel": s.ExecByID("never-was").Cancel(ctx),
	} {
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code == "" || e.Code == protocol.Internal {
			t.Errorf("%s: %v (%T) is no *protocol.Error with a code", what, err, err)
		}
	}
	if !errors.Is(ended, context.Canceled) {
		t.Errorf("the end of a context is %v", ended)
	}
}

func TestS23_APrimaryCommandThatExitsAgainAndAgainFails(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	const window = 2 * time.Second
	w := f.Worker("w1", fleet.Role{CrashWindow: window, CrashGuard: time.Second})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "sleep 0.7; false"} // one that ends at once fails the create
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s23"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	steady := f.Spec()
	steady.Command = []string{"sleep", "1000"}
	other, err := f.Client.Create(ctx, steady, sdk.WithID("steady"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.WaitStopped(ctx)
	wantError(t, "a primary command that exits soon", err, protocol.FailedPrecondition, protocol.ReasonCrashLoop, "")
	events := history(ctx, t, f.Client, "s23")
	failed, ready := find(t, events, protocol.SandboxFailed), find(t, events, protocol.SandboxReady)
	// The window begins with the first exit, which is after the start, and may be before it is ready.
	start := slices.IndexFunc(events, func(e protocol.Event) bool { return e.Kind == protocol.SandboxPreparing && e.Phase.Phase == "start" })
	if start < 0 {
		t.Fatalf("no start in %v", kinds(events))
	}
	if after := failed.Time.Sub(events[start].Time); after < window {
		t.Errorf("it failed %s after its start, the window is %s", after, window)
	}
	if after := failed.Time.Sub(ready.Time); after > window+4*time.Second {
		t.Errorf("it failed %s after it was ready, the window is %s", after, window)
	}
	mustExec(ctx, t, other, script("true"))
	for _, s := range []*sdk.Sandbox{s, other} {
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	becomesEmpty(f, w)
	f.Judge()
}

func TestS24_WhatNeedsNoHostIsRefusedBeforeTheIDIsTaken(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: coordinator.Timing{Scan: 200 * time.Millisecond}})
	allowed := t.TempDir()
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed}})
	ctx := f.Context(time.Minute)
	// Past the SDK, which refuses the same.
	bad := f.Spec()
	bad.CPU = -1
	_, err := f.Client.Raw().Submit(ctx, sdk.Request{Verb: protocol.VerbCreate, Sandbox: "s24", Payload: protocol.Request{Sandbox: &bad}})
	wantError(t, "a bad spec at the coordinator", err, protocol.InvalidArgument, "", "spec.cpu")
	_, err = f.Client.Create(ctx, bad, sdk.WithID("s24"))
	wantError(t, "a bad spec at the SDK", err, protocol.InvalidArgument, "", "spec.cpu")
	if _, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("s24")); err != nil {
		t.Errorf("the id of a refused create cannot be used: %v", err)
	}

	placement := f.Spec()
	placement.Mounts = []protocol.Mount{{Source: "/opt", Target: "/m"}} // no host allows it
	_, err = f.Client.Create(ctx, placement, sdk.WithID("placement"))
	wantError(t, "what placement refuses", err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[0].source")
	if s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("placement")); err != nil {
		t.Errorf("the id of a create that no host could take cannot be used: %v", err)
	} else if err := s.Delete(ctx); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("/opt", filepath.Join(allowed, "link")); err != nil {
		t.Fatal(err)
	}
	placement.Mounts[0].Source = filepath.Join(allowed, "link") // only the host can know
	_, err = f.Client.Create(ctx, placement, sdk.WithID("host"))
	wantError(t, "what the worker refuses", err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[0].source")
	if n := count(history(ctx, t, f.Client, "host"), protocol.SandboxAssigned); n != 1 {
		t.Errorf("it was assigned %d times", n)
	}
	if err := f.Client.Sandbox("s24").Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
