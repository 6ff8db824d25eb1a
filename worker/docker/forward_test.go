package docker

import (
	"io"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
)

// The engine may restart while the worker is busy with an earlier event.
func TestALostStreamIsNoticedWhileNobodyReceivesItsEvents(t *testing.T) {
	t.Parallel()
	messages, errs := make(chan events.Message), make(chan error)
	lost, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- forward(t.Context(), messages, errs, make(chan Event), func() { close(lost) })
	}()
	limit := time.After(10 * time.Second)
	for range 3 { // the receiver takes none of these events
		select {
		case messages <- events.Message{Action: events.ActionDie}:
		case <-limit:
			t.Fatal("the stream is not read while nobody receives its events")
		}
	}
	errs <- io.EOF
	select {
	case <-lost:
	case <-limit:
		t.Fatal("lost was not called after the stream failed")
	}
	if err := <-ended; err != io.EOF {
		t.Errorf("the stream ended with %v, want its error", err)
	}
}
