package jetstream

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	probePeriod  = 500 * time.Millisecond // between looks whether an append had no answer
	probeAnyway  = 5 * time.Second        // between probes while nothing is suspected
	reportPeriod = 30 * time.Second
	firstReport  = 5 * time.Second // a cluster that is just starting is still bringing its replicas together
	recoverPause = 2 * time.Second // between tries to have the log take writes again, at first
	recoverMost  = 30 * time.Second

	// probeSubject is no sandbox's: tenants have no such name.
	probeSubject = "boxfleet.v1.event.-.-"
)

// WatchStore watches, until ctx ends, whether the event log takes writes, and brings it back where it
// does not: by restart for a server in this process, which may be nil; by a change of leader on a
// cluster; for another single server it says which one has to be restarted. A server's file store
// remembers a write error, such as that of a full disk, and refuses everything from then on.
//
// It also logs what [Conn.Storage] says is less safe than it should be, each time that changes.
func (c *Conn) WatchStore(ctx context.Context, restart func(context.Context) error) error {
	probed, reported, said := time.Now(), time.Now().Add(firstReport-reportPeriod), ""
	pause := backoff.New(recoverPause, recoverMost)
	for backoff.Sleep(ctx, probePeriod) {
		if time.Since(reported) > reportPeriod {
			said, reported = c.reportStorage(ctx, said), time.Now()
		}
		if !c.room.suspected() && time.Since(probed) < probeAnyway {
			continue
		}
		probed = time.Now()
		why, known := c.probeLog(ctx)
		if !known || why == "" && c.room.broken() == "" {
			continue
		}
		if why == "" {
			c.room.setFailed("")
			c.log.Warn("the event log takes writes again")
			pause.Reset()
			continue
		}
		if c.room.setFailed(why) {
			c.log.Error("the event log takes no writes", "why", why)
		}
		if err := c.RecoverStore(ctx, restart); err != nil {
			c.log.Error("the event log does not take writes again", "error", err)
			if !pause.Wait(ctx) {
				break
			}
			if protocol.CodeOf(err) == protocol.ResourceExhausted {
				pause.Reset() // a disk that gets room is to be found soon
			}
		}
		c.room.suspect()
	}
	return ctx.Err()
}

// RecoverStore has an event log take writes again that refuses them although there is room: it calls
// restart where it is not nil; on a cluster another server becomes the leader. Error: failed_precondition
// with reason server_settings, naming the one server that a person must restart.
func (c *Conn) RecoverStore(ctx context.Context, restart func(context.Context) error) error {
	if restart != nil {
		return restart(ctx)
	}
	info, err := c.streamInfo(ctx, protocol.StreamEvents)
	if err != nil {
		return err
	}
	if info.Config.Replicas > 1 {
		return c.stepDown(ctx, protocol.StreamEvents)
	}
	server := c.nc.ConnectedServerName()
	if info.Cluster != nil && info.Cluster.Leader != "" {
		server = info.Cluster.Leader
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
		"NATS server %s remembers a write error of its store: make room on its disk, and restart it", server)
}

// probeLog asks the event log to remove what nobody has, which a store that refuses writes refuses
// too, and any other does at once. known is false where there is no answer.
func (c *Conn) probeLog(ctx context.Context) (why string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	stream, err := c.readStream(ctx, protocol.StreamEvents)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(probeSubject))
	}
	if err == nil {
		return "", true
	}
	if code := protocol.CodeOf(translate(err, "probe")); code != protocol.Internal && code != protocol.ResourceExhausted {
		return "", false
	}
	return err.Error(), true
}

// reportStorage logs what is wrong with what is stored, where that is something else than what was said.
func (c *Conn) reportStorage(ctx context.Context, said string) string {
	s := c.Storage(ctx)
	now := strings.Join(append(s.Problems, s.Warnings...), "; ")
	if now == said || ctx.Err() != nil {
		return said
	}
	for _, p := range s.Problems {
		c.log.Error("storage", "problem", p)
	}
	for _, w := range s.Warnings {
		c.log.Warn("storage", "warning", w)
	}
	return now
}
