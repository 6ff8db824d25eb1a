package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

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

// kinds lists the kinds of events in order.
func kinds(events []protocol.Event) []protocol.Kind {
	list := make([]protocol.Kind, len(events))
	for i, e := range events {
		list[i] = e.Kind
	}
	return list
}

// count returns the number of events of a kind.
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

// wantNoImage fails the test unless err says that an image is unavailable. If the machine reaches a registry, the
// registry does not have the image. Otherwise the pull fails.
func wantNoImage(t *testing.T, err error) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Reason != protocol.ReasonImageNotFound &&
		e.Reason != protocol.ReasonRegistryUnreachable {
		t.Errorf("a sandbox without an image: got %v", err)
	}
}

// becomesEmpty fails the test unless all objects of the fleet disappear from the engine and the worker's directory
// within a time limit, and do not reappear.
func becomesEmpty(f *fleet.Fleet, w *fleet.Process) {
	f.TB.Helper()
	f.Eventually(10*time.Second, "nothing is left on the host", func() error {
		if left := append(f.Objects(w.Role.Engine), f.Directories(w)...); len(left) > 0 {
			return fmt.Errorf("there is still %q", left)
		}
		return nil
	})
}
