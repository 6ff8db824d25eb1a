package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

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
		// The coordinator drops the sandbox after it has purged the history.
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
	f.Eventually(5*time.Second, "only the two ids are kept", func() error {
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

// messagesOf returns the number of messages in a stream.
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

func TestS14_AnInterruptedAcceptLeavesNoPhantom(t *testing.T) {
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
	c.AwaitKilled(30 * time.Second) // by then the coordinator has reserved the id and appended nothing
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
	if count(events, protocol.SandboxAccepted) != 1 || count(events, protocol.ExecFailed) != 0 ||
		count(events, protocol.SandboxFailed) != 0 {
		t.Errorf("phantoms: %v", kinds(events))
	}

	// The id of a refused exec can be used again.
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
