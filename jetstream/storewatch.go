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
	probePeriod  = 500 * time.Millisecond // pause between two checks for appends that got no answer
	probeAnyway  = 5 * time.Second        // pause between two probes if all appends got an answer
	reportPeriod = 30 * time.Second       // pause between two checks of the storage
	firstReport  = 5 * time.Second        // time before the first check: a starting cluster's replicas must get in sync
	recoverPause = 2 * time.Second        // first pause between attempts to recover the log
	recoverMost  = 30 * time.Second

	// probeSubject belongs to no sandbox: no tenant has such a name.
	probeSubject = "boxfleet.v1.event.-.-"
)

// WatchStore checks until ctx ends whether the event log accepts writes. If the log accepts no writes, WatchStore
// recovers it. A server's file store remembers a write error, such as a full disk, and refuses all later writes. If the
// server runs in this process, WatchStore calls restart to restart the server; otherwise restart is nil. In a cluster,
// WatchStore asks the log's leader to hand over to another server. If the log is on a single separate server,
// WatchStore only logs that a person must restart that server.
//
// WatchStore also logs the problems and warnings that [StoreHealth.Storage] reports, each time they change.
func (h *StoreHealth) WatchStore(ctx context.Context, restart func(context.Context) error) error {
	probed, reported, said := time.Now(), time.Now().Add(firstReport-reportPeriod), ""
	pause := backoff.New(recoverPause, recoverMost)
	for backoff.Sleep(ctx, probePeriod) {
		if time.Since(reported) > reportPeriod {
			said, reported = h.reportStorage(ctx, said), time.Now()
		}
		if !h.room.suspected() && time.Since(probed) < probeAnyway {
			continue
		}
		probed = time.Now()
		why, known := h.probeLog(ctx)
		if !known || why == "" && h.room.broken() == "" {
			continue
		}
		if why == "" {
			h.room.setFailed("")
			h.log.Warn("the event log accepts writes again")
			pause.Reset()
			continue
		}
		if h.room.setFailed(why) {
			h.log.Error("the event log accepts no writes; recovering it", "why", why)
		}
		if err := h.RecoverStore(ctx, restart); err != nil {
			h.log.Error("could not recover the event log", "error", err)
			if !pause.Wait(ctx) {
				break
			}
			if protocol.CodeOf(err) == protocol.ResourceExhausted {
				pause.Reset() // try again soon after the disk has room
			}
		}
		h.room.suspect()
	}
	return ctx.Err()
}

// RecoverStore recovers an event log that refuses writes although it has room. If restart is not nil, it calls restart.
// If restart is nil and the servers form a cluster, it asks the log's leader to hand over to another server. Error:
// failed_precondition with reason server_settings if a person must restart a server; the message says which.
func (h *StoreHealth) RecoverStore(ctx context.Context, restart func(context.Context) error) error {
	if restart != nil {
		return restart(ctx)
	}
	if h.jetStreamDisabled() {
		return settings("%s", whyNoJetStream(jetstream.ErrJetStreamNotEnabled))
	}
	info, err := h.streamInfo(ctx, protocol.StreamEvents)
	if err != nil {
		return err
	}
	if info.Config.Replicas > 1 {
		return h.stepDown(ctx, protocol.StreamEvents)
	}
	server := h.nc.ConnectedServerName()
	if info.Cluster != nil && info.Cluster.Leader != "" {
		server = info.Cluster.Leader
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
		"NATS server %s remembers a write error of its store: make room on its disk, and restart it", server)
}

// probeLog purges a subject without messages. A store that refuses writes also refuses the purge, and any other store
// answers immediately. known is false if there was no answer, unless JetStream is disabled.
func (h *StoreHealth) probeLog(ctx context.Context) (why string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	stream, err := h.readStream(ctx, protocol.StreamEvents)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(probeSubject))
	}
	if err == nil {
		return "", true
	}
	if h.jetStreamDisabled() {
		return "NATS: " + whyNoJetStream(jetstream.ErrJetStreamNotEnabled), true
	}
	if !isOneOf(translate(err, "probe"), protocol.Internal, protocol.ResourceExhausted) {
		return "", false
	}
	return err.Error(), true
}

// reportStorage logs the problems and warnings of the storage if they differ from the last report. said is the last
// report; the result is the new report.
func (h *StoreHealth) reportStorage(ctx context.Context, said string) string {
	s := h.Storage(ctx)
	now := strings.Join(append(s.Problems, s.Warnings...), "; ")
	if now == said || ctx.Err() != nil {
		return said
	}
	for _, p := range s.Problems {
		h.log.Error("the storage has a problem", "problem", p)
	}
	for _, w := range s.Warnings {
		h.log.Warn("the storage is filling up", "warning", w)
	}
	return now
}
