package docker

import (
	"context"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// Event announces a change of a container of this deployment. It is only a hint to inspect the container: an event may
// be delivered twice, and events that occurred while there was no stream are missing.
type Event struct {
	Type   string // "container"
	Action string // create, start, die, oom, kill, stop, destroy, …
	ID     string
	Labels map[string]string // the container's labels, and attributes that the engine adds: name, image, exitCode, …
	Time   time.Time
}

// eventOverlap is how far in the past a stream of events begins. The engine answers the request for events a moment
// before it begins to record events for the stream. Without the overlap, a caller that lists the containers right after
// the answer would miss events.
const eventOverlap = 2 * time.Second

// eventStreams has the methods that follow the engine's events.
type eventStreams struct{ *connection }

// Events follows the containers of this deployment until ctx ends. It waits until the stream has started, but not
// longer than the time limit of a read. Then it calls begun and returns.
//
// When the stream ends, exactly one error is sent, and then both channels are closed. The error is cancelled if ctx
// ended, and unavailable otherwise. After unavailable, the caller should call Events again and list the containers.
//
// As soon as the stream breaks, Events calls lost, even if the caller is not receiving events at that time. It sends
// the error after that. The call of lost therefore comes before any answer of a restarted engine.
func (es *eventStreams) Events(ctx context.Context, begun, lost func()) (<-chan Event, <-chan error) {
	out := make(chan Event)
	failed := make(chan error, 1)
	c := call{verb: "follow", kind: kindContainer, limit: es.readLimit()}
	following, stop := context.WithCancel(ctx)

	// Only the start of the stream has a deadline.
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

// FollowImages calls changed whenever any client of the engine may have added, removed or renamed an image. It returns
// when ctx ends, with cancelled, or when the stream breaks, with unavailable. The caller must check for changes that
// occurred before a call of FollowImages.
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

// forward sends the events of a stream to the channel out until the stream fails. Then it calls lost, and returns the
// stream's error. It keeps reading the stream while nobody receives from the channel, so that it notices the failure at
// once.
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
