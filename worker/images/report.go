package images

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// With these limits, a report fits into one message.
const (
	maxReported  = 1000      // maximum number of names, and of images that the worker manages
	maxNameBytes = 128 << 10 // maximum length of all names together
)

// reportPause is the minimum time between two reports.
const reportPause = 500 * time.Millisecond

// reportSink publishes reports.
type reportSink interface {
	PublishImages(ctx context.Context, h *protocol.HostImages) error
	Now() time.Time
}

// reporter publishes which images the host has.
type reporter struct {
	engine    *docker.Engine
	inventory *inventory
	sink      reportSink
	interval  time.Duration       // the time between checks for changes that the engine did not announce
	identity  protocol.HostImages // the fields that are the same in each report
	log       *slog.Logger
}

// run publishes a report now and after each change, until ctx ends.
func (p *reporter) run(ctx context.Context) {
	var published []byte
	report := p.identity
	check := time.NewTicker(p.interval)
	defer check.Stop()
	for {
		var retry <-chan time.Time
		names, err := p.engine.ImageNames(ctx)
		if err == nil {
			report.Listed = true
			report.Names, report.Cut = limitNames(p.inventory.withRefs(names))
		} else if ctx.Err() == nil {
			p.log.Warn("could not list the images on the host; retrying", "error", err)
			retry = time.After(time.Second)
		}
		rows := p.inventory.rows()
		report.Images = rows[:min(len(rows), maxReported)]
		if content := protocol.Encode(report); !bytes.Equal(content, published) {
			now := report
			now.Time = p.sink.Now()
			if err := p.sink.PublishImages(ctx, &now); err == nil {
				published = content
			} else if ctx.Err() == nil {
				p.log.Warn("could not publish the list of the host's images; retrying", "error", err)
				p.inventory.changed.Wake()
			}
		}
		if !backoff.Sleep(ctx, reportPause) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.inventory.changed:
		case <-retry:
		case <-check.C:
		}
	}
}

// follow wakes the reporter each time the engine announces that an image changed, until ctx ends.
func (p *reporter) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.engine.FollowImages(ctx, p.inventory.changed.Wake)
		if ctx.Err() == nil {
			p.log.Debug("the stream of the engine's image events ended; following it again", "error", err)
		}
		if !backoff.Sleep(ctx, time.Second) {
			return
		}
		p.inventory.changed.Wake() // some events may have been missed
	}
}

// limitNames returns as many of the first names as fit into a report, sorted, and reports whether some names did not
// fit. The caller puts important names first.
func limitNames(names []string) (reported []string, cut bool) {
	size := 0
	for _, name := range names {
		if size += len(name); len(reported) == maxReported || size > maxNameBytes {
			cut = true
			break
		}
		reported = append(reported, name)
	}
	slices.Sort(reported)
	return slices.Compact(reported), cut
}
