package main

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	appendsAtOnce = 64
	appendsFor    = 2 * time.Second
)

// storeRate counts the durable appends per second, each with a compare-and-set, while coordinators follow the log as
// usual. The appended histories belong to a separate tenant, and all their sandboxes have failed. Therefore no process
// acts on them.
func storeRate(ctx context.Context, url, creds string) (float64, error) {
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: url, Creds: creds, Name: "load-store"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	why := protocol.Errorf(protocol.Internal, protocol.ReasonAbandoned, "a measurement of the store")
	whole := spec()
	var done atomic.Int64
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range appendsAtOnce {
		group.Go(func() error {
			for time.Since(begin) < appendsFor {
				e := protocol.Event{Sequence: 1, Kind: protocol.SandboxFailed, State: protocol.StateFailed,
					Time:    time.Now().UTC(),
					Request: newID(), Error: why, Reason: why.Reason, Details: &protocol.SandboxDetails{Spec: &whole}}
				b := &protocol.Batch{Version: protocol.Version, Tenant: "store", Sandbox: newID(), ID: newID(),
					Writer: "load", Events: []protocol.Event{e}}
				if _, err := conn.Append(ctx, b, 0); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = group.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds(), err
}
