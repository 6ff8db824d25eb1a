package docker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestEventsAreOfThisDeploymentsContainersOnly(t *testing.T) {
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
				t.Errorf("got %+v", e)
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
			t.Errorf("no %s among %v", want, actions)
		}
	}
	cancel()
	if err := <-failed; protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("after the end of ctx: got %v", err)
	}
	if _, open := <-events; open {
		t.Error("the events channel is not closed")
	}
}

func TestEventsEndWhenTheEngineClosesTheConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost := make(chan struct{})
	_, failed := b.Events(t.Context(), func() {}, func() { close(lost) })
	b.create(t, b.sleeper(), false) // nobody takes the event
	time.Sleep(time.Second)
	check(t, b.proxy.Close())
	select {
	case <-lost:
	case <-time.After(10 * time.Second):
		t.Fatal("lost was not called")
	}
	select {
	case err := <-failed:
		if !errors.Is(err, docker.ErrEngineUnavailable) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the stream did not end")
	}
}
