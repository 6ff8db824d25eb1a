package docker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestEventsAreOnlyAboutContainersOfThisDeployment(t *testing.T) {
	t.Parallel()
	b, stranger := newBench(t), newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, failed := b.Events(ctx, func() {}, func() {})

	stranger.create(t, stranger.sleeper(), false)
	spec := b.sleeper()
	spec.Labels = map[string]string{docker.LabelSandbox: "s1"}
	id := b.create(t, spec, true)
	check(t, b.RemoveContainer(t.Context(), id))

	actions := map[string]bool{}
	for !actions["destroy"] {
		select {
		case e := <-events:
			if e.ID != id || e.Type != "container" || e.Labels[docker.LabelSandbox] != "s1" ||
				time.Since(e.Time).Abs() > time.Minute {
				t.Errorf("got the event %+v, want one of container %s", e, id)
			}
			actions[e.Action] = true
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(10 * time.Second):
			t.Fatalf("got only these events: %v", actions)
		}
	}
	for _, want := range []string{"create", "start", "die"} {
		if !actions[want] {
			t.Errorf("got no event with action %s, only %v", want, actions)
		}
	}
	cancel()
	if err := <-failed; protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("the stream ended with %v after its context was cancelled, want cancelled", err)
	}
	if _, open := <-events; open {
		t.Error("the channel of events is not closed after the end of the stream")
	}
}

func TestEventsEndWhenTheEngineClosesTheConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost := make(chan struct{})
	_, failed := b.Events(t.Context(), func() {}, func() { close(lost) })
	b.create(t, b.sleeper(), false) // nobody receives the event of this container
	check(t, b.proxy.Close())
	select {
	case <-lost:
	case <-time.After(10 * time.Second):
		t.Fatal("lost was not called within 10 s after the connection was closed")
	}
	select {
	case err := <-failed:
		if !errors.Is(err, docker.ErrEngineUnavailable) {
			t.Errorf("the stream ended with %v, want %v", err, docker.ErrEngineUnavailable)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the stream did not end within 10 s after the connection was closed")
	}
}
