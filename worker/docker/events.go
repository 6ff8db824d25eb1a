package docker

import (
	"context"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// Event announces a change of a container of this deployment. It is a hint to inspect the container: an event may be
// delivered twice, and events while the stream was down are missing.
type Event struct {
	Type   string // "container"
	Action string // create, start, die, oom, kill, stop, destroy, …
	ID     string
	Labels map[string]string // with the engine's own attributes: name, image, exitCode, …
	Time   time.Time
}

// eventOverlap is how far in the past the stream begins. The engine answers before it listens, so a caller that lists
// the containers right after would miss the events in between.
const eventOverlap = 2 * time.Second

// eventStreams are the methods that follow the engine's events.
type eventStreams struct{ *connection }

// Events follows the containers of this deployment until ctx ends. It returns when the stream has started, or has not
// started within the time of a read, and calls begun before it returns. The last value is exactly one error: cancelled
// if ctx ended, otherwise unavailable, after which the caller follows again and lists the containers. Then both
// channels are closed. lost is called as soon as the stream breaks, however busy the caller is, and before the error is
// sent: that is before a restarted engine can have answered.
func (es *eventStreams) Events(ctx context.Context, begun, lost func()) (<-chan Event, <-chan error) {
	out := make(chan Event)
	failed := make(chan error, 1)
	c := call{verb: "follow", kind: kindContainer, limit: es.readLimit()}
	following, stop := context.WithCancel(ctx)

	// The stream itself has no deadline; only its start has.
	late := time.AfterFunc(c.limit, stop)
	messages, errs := es.client.Events(following, events.ListOptions{
		Since: strconv.FormatInt(time.Now().Add(-eventOverlap).Unix(), 10),
		Filters: filters.NewArgs(
			filters.Arg("type", string(events.ContainerEventType)),
			filters.Arg("label", LabelDeployment+"="+es.deployment)),
	})
	late.Stop()
	begun()

	go func() {
		defer close(failed)
		defer close(out)
		defer stop()
		failed <- translate(ctx, c, forward(following, messages, errs, out, lost))
	}()
	return out, failed
}

// FollowImages calls changed whenever an image may have been added, removed or renamed, by anyone, until ctx ends or
// the stream breaks. It returns the reason: cancelled or unavailable. The caller must check for changes before and
// between calls itself.
func (es *eventStreams) FollowImages(ctx context.Context, changed func()) error {
	c := call{verb: "follow", kind: kindImage, limit: es.readLimit()}
	following, stop := context.WithCancel(ctx)
	defer stop()
	late := time.AfterFunc(c.limit, stop)
	messages, errs := es.client.Events(following, events.ListOptions{
		Since:   strconv.FormatInt(time.Now().Add(-eventOverlap).Unix(), 10),
		Filters: filters.NewArgs(filters.Arg("type", string(events.ImageEventType))),
	})
	late.Stop()
	for {
		select {
		case <-messages:
			changed()
		case err := <-errs:
			return translate(ctx, c, err)
		}
	}
}

// forward passes events on until the stream fails, then calls lost and returns the error. It keeps reading the stream
// while the receiver is busy.
func forward(ctx context.Context, messages <-chan events.Message, errs <-chan error, out chan<- Event,
	lost func()) error {
	defer lost()
	var waiting []Event
	for {
		var next Event
		var to chan<- Event
		if len(waiting) > 0 {
			next, to = waiting[0], out
		}
		select {
		case m := <-messages:
			waiting = append(waiting, Event{
				Type: string(m.Type), Action: string(m.Action), ID: m.Actor.ID, Labels: m.Actor.Attributes,
				Time: time.Unix(0, m.TimeNano),
			})
		case to <- next:
			waiting = waiting[1:]
		case err := <-errs:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
