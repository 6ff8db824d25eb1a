package jetstream

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	checkWithin = 1800 * time.Millisecond // time for one check: a stream without a leader does not answer
	warnPercent = 80                      // percentage of a limit from which a warning is given
	plenty      = 20 << 30                // a disk with this many free bytes never counts as nearly full
)

// storageCheck is a check of the storage, running or finished.
type storageCheck struct {
	done  chan struct{}
	found *protocol.Storage // set before done is closed
	at    time.Time
}

// StoreHealth checks the storage of NATS and how much room it has, and recovers an event log that accepts no writes.
type StoreHealth struct {
	*streams

	checked *storageCheck // the last check; guarded by mu
}

// Storage returns the current state of the storage: leaders, replicas in sync, used and free space. If Storage cannot
// determine something, the result lists a problem. It always returns a result, within 4 s or when ctx ends. Calls that
// overlap or follow within a second share one check. Otherwise a caller that times out and asks again would never get a
// result.
func (h *StoreHealth) Storage(ctx context.Context) *protocol.Storage {
	h.mu.Lock()
	l := h.checked
	if l == nil || !l.at.IsZero() && time.Since(l.at) > roomFresh {
		l = &storageCheck{done: make(chan struct{})}
		h.checked = l
		go func() {
			found := h.checkStorage(context.WithoutCancel(ctx))
			h.mu.Lock()
			defer h.mu.Unlock()
			l.found, l.at = found, time.Now()
			close(l.done)
		}()
	}
	h.mu.Unlock()
	select {
	case <-l.done:
		return l.found
	case <-ctx.Done():
		return &protocol.Storage{Problems: []string{"NATS: JetStream does not answer in time"}}
	}
}

func (h *StoreHealth) checkStorage(ctx context.Context) *protocol.Storage {
	s := &protocol.Storage{}
	h.room.mu.Lock()
	disk := h.room.disk
	h.room.mu.Unlock()
	if disk != nil {
		s.DiskFree, s.DiskSize = disk()
	}
	account, why := h.jetStreamAnswers(ctx)
	if why != "" {
		s.Problems = append(s.Problems, why)
		return s
	}
	s.Bytes, s.MaxBytes = int64(account.Store), max(account.Limits.MaxStore, 0)
	s.Streams = h.checkStreams(ctx)
	s.Problems = append(s.Problems, behind(s.Streams)...)
	if room, err := h.LogRoom(ctx); err == nil && room.Err() != nil {
		s.Problems = append(s.Problems, protocol.AsError(room.Err()).Message)
	}
	s.Warnings = filling(s)
	return s
}

// jetStreamAnswers checks that JetStream is available. If it is not, it returns one sentence about the reason.
func (h *StoreHealth) jetStreamAnswers(ctx context.Context) (*jetstream.AccountInfo, string) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	var info *jetstream.AccountInfo
	var err error
	for { // an election takes a moment
		if info, err = h.js.AccountInfo(ctx); err == nil {
			return info, ""
		}
		if !backoff.Sleep(ctx, retryPause) {
			if h.jetStreamDisabled() {
				err = jetstream.ErrJetStreamNotEnabled
			}
			return nil, "NATS: " + whyNoJetStream(err)
		}
	}
}

// checkStreams checks all streams at once.
func (h *StoreHealth) checkStreams(ctx context.Context) []protocol.StreamStorage {
	all := (&Assets{}).assets()
	checked := make([]protocol.StreamStorage, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, checkWithin)
			defer cancel()
			info, err := h.streamInfo(bounded, a.config.Name)
			checked[i] = streamStorage(a.config.Name, info, err)
		})
	}
	wg.Wait()
	return checked
}

func streamStorage(name string, info *jetstream.StreamInfo, err error) protocol.StreamStorage {
	if isReason(err, protocol.ReasonNotProvisioned) {
		return protocol.StreamStorage{Name: name, Error: "it does not exist"}
	}
	if isOneOf(err, protocol.DeadlineExceeded, protocol.Unavailable) {
		return protocol.StreamStorage{Name: name,
			Error: "it has no leader: it has no majority of its servers, or is electing one"}
	}
	if err != nil {
		return protocol.StreamStorage{Name: name, Error: protocol.AsError(err).Message}
	}
	s := protocol.StreamStorage{Name: name, Replicas: info.Config.Replicas, InSync: 1, Messages: info.State.Msgs,
		Bytes: int64(info.State.Bytes), MaxBytes: max(info.Config.MaxBytes, 0)}
	if info.Cluster == nil {
		return s
	}
	s.Leader = info.Cluster.Leader
	for _, r := range info.Cluster.Replicas {
		if r.Current && !r.Offline {
			s.InSync++
		} else {
			s.Behind = append(s.Behind, r.Name)
		}
	}
	slices.Sort(s.Behind)
	return s
}

// behind returns the problems of streams that are stored less safely than other streams, or than they should be.
// Streams with the same problem share one sentence.
func behind(streams []protocol.StreamStorage) []string {
	most := 0
	for _, s := range streams {
		most = max(most, s.Replicas)
	}
	affected := map[string][]string{} // streams by problem
	for _, s := range streams {
		switch {
		case s.Error != "":
			affected[s.Error] = append(affected[s.Error], s.Name)
		case s.InSync < s.Replicas:
			why := fmt.Sprintf("%d of %d replicas are in sync: NATS server %s is unreachable or catching up, "+
				"or disabled JetStream when its disk was full and must be restarted",
				s.InSync, s.Replicas, strings.Join(s.Behind, ", "))
			affected[why] = append(affected[why], s.Name)
		case s.Replicas < most:
			why := fmt.Sprintf("%d replica(s), but other streams have %d: run boxfleet storage grow --replicas %d",
				s.Replicas, most, most)
			affected[why] = append(affected[why], s.Name)
		}
	}
	var problems []string
	for _, why := range slices.Sorted(maps.Keys(affected)) {
		problems = append(problems, strings.Join(affected[why], ", ")+": "+why)
	}
	return problems
}

// filling returns a warning for each stream, account or disk that is filled beyond warnPercent of its limit.
func filling(s *protocol.Storage) []string {
	var warnings []string
	warn := func(what string, used, limit int64, do string) {
		if limit > 0 && used >= limit/100*warnPercent {
			warnings = append(warnings, fmt.Sprintf("%s: %s of %s are used: %s",
				what, protocol.Bytes(used), protocol.Bytes(limit), do))
		}
	}
	for _, stream := range s.Streams {
		if stream.Name != protocol.StreamLogs &&
			stream.Name != protocol.StreamDead { // output and dead letters: the server removes the oldest
			warn(stream.Name, stream.Bytes, stream.MaxBytes,
				"delete some of its data, or raise its limit with boxfleet storage set")
		}
	}
	warn("the account's store", s.Bytes, s.MaxBytes, "delete some data, or raise the account's limit")
	if s.DiskFree < plenty {
		warn("the disk of the store", s.DiskSize-s.DiskFree, s.DiskSize, "make room on it")
	}
	return warnings
}

// Server describes the server that this process is connected to: its version, the name of its cluster, and the size
// limit of its messages. The name is empty if the server is alone.
func (h *StoreHealth) Server() (version, cluster string, maxPayload protocol.Bytes) {
	return h.nc.ConnectedServerVersion(), h.nc.ConnectedClusterName(), protocol.Bytes(h.nc.MaxPayload())
}

// Durability describes what an acknowledged write survives now, as far as this process can tell.
func (h *StoreHealth) Durability(s *protocol.Storage, syncAlways bool) string {
	server := "NATS " + h.nc.ConnectedServerVersion()
	replicas, inSync := 0, 0
	for _, stream := range s.Streams {
		if stream.Error != "" {
			return "none now: a stream has no leader"
		}
		if replicas == 0 || stream.InSync < inSync {
			replicas, inSync = stream.Replicas, stream.InSync
		}
	}
	powerLoss := "survives a power loss of all only if each server has sync_interval: always, " +
		"which cannot be checked from here"
	majority := replicas/2 + 1
	switch {
	case replicas == 0:
		return "none now: nothing can be stored"
	case syncAlways:
		return fmt.Sprintf(
			"each write is on disk before it is acknowledged (embedded %s, fsync on every write, %d replica(s))",
			server,
			replicas,
		)
	case replicas == 1:
		return fmt.Sprintf(
			"one replica on %s: survives the end of the process; survives a power loss only if the server "+
				"has sync_interval: always, which cannot be checked from here",
			server,
		)
	case inSync == replicas:
		return fmt.Sprintf("%d replicas on %s, all in sync: survives the loss of a minority of servers; %s",
			replicas, server, powerLoss)
	case inSync > majority:
		return fmt.Sprintf("%d of %d replicas on %s are in sync: survives the loss of %d more; %s",
			inSync, replicas, server, inSync-majority, powerLoss)
	case inSync == majority:
		return fmt.Sprintf("%d of %d replicas on %s are in sync: does not survive the loss of one more; %s",
			inSync, replicas, server, powerLoss)
	}
	return fmt.Sprintf("none now: %d of %d replicas on %s are in sync, less than a majority", inSync, replicas, server)
}
