package docker

import (
	"context"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// Event says that something happened to a container of this deployment. It is a hint to look at
// the container: it may come twice, and those while the stream was down do not come at all.
type Event struct {
	Type   string // "container"
	Action string // create, start, die, oom, kill, stop, destroy, …
	ID     string
	Labels map[string]string // with the engine's own attributes: name, image, exitCode, …
	Time   time.Time
}

// eventOverlap is how far back the stream begins. The engine answers before it listens; what
// happens in between would be missed by a caller who lists the containers right after.
const eventOverlap = 2 * time.Second

// Events follows the containers of this deployment until ctx ends. It returns when the engine has
// begun to tell, or has not within the time of a read. Exactly one error is sent, last: cancelled
// after ctx's end, else unavailable, and then the caller follows anew and lists the containers. Both
// channels are closed after it. Before it returns, begun is called. Before the error is sent, lost is called, at
// once when the engine goes, however busy the caller is: before any engine that comes after it can have answered.
func (e *Engine) Events(ctx context.Context, begun, lost func()) (<-chan Event, <-chan error) {
	out := make(chan Event)
	failed := make(chan error, 1)
	c := call{verb: "follow", kind: kindContainer, limit: e.readLimit()}
	following, stop := context.WithCancel(ctx)

	// The stream itself has no end; only its beginning is bounded.
	late := time.AfterFunc(c.limit, stop)
	messages, errs := e.client.Events(following, events.ListOptions{
		Since: strconv.FormatInt(time.Now().Add(-eventOverlap).Unix(), 10),
		Filters: filters.NewArgs(
			filters.Arg("type", string(events.ContainerEventType)),
			filters.Arg("label", LabelDeployment+"="+e.deployment)),
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

// FollowImages calls changed each time that an image may have come, gone or got another name, whoever
// did it, until ctx ends or the engine stops telling, and returns why: cancelled or unavailable. What
// happened before it was called, or between two calls, is for the caller to look at.
func (e *Engine) FollowImages(ctx context.Context, changed func()) error {
	c := call{verb: "follow", kind: kindImage, limit: e.readLimit()}
	following, stop := context.WithCancel(ctx)
	defer stop()
	late := time.AfterFunc(c.limit, stop)
	messages, errs := e.client.Events(following, events.ListOptions{
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

// forward passes events on until the stream fails, calls lost and returns why. It reads the stream also
// while nobody takes them.
func forward(ctx context.Context, messages <-chan events.Message, errs <-chan error, out chan<- Event, lost func()) error {
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
				Type: string(m.Type), Action: string(m.Action), ID: m.Actor.ID, Labels: m.Actor.Attributes, Time: time.Unix(0, m.TimeNano),
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
