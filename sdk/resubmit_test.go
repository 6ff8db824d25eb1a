package sdk_test

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A request that is sent again while its first copy waits for a majority of the servers is carried out
// all the same.
func TestARequestOutlastsTheLossOfAMajority(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Servers: 3, Workers: -1})
	ctx := f.Context(2 * time.Minute)
	leader := -1
	for i, s := range f.Servers {
		if s.JetStreamIsStreamLeader("$G", protocol.StreamRequests) {
			leader = i
		}
	}
	if leader < 0 {
		t.Fatal("the queue of requests has no leader")
	}
	const patience = time.Second // with one try, so that it is tried again while nothing can be stored
	client, err := sdk.Connect(ctx, sdk.Options{URL: f.Servers[leader].ClientURL(), RequestTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i, s := range f.Servers {
		if i != leader {
			s.Stop()
		}
	}
	created := make(chan error, 1)
	go func() {
		_, err := client.Create(ctx, f.Spec(), sdk.WithID("s"), sdk.WithWait(false))
		created <- err
	}()
	select {
	case err := <-created:
		t.Errorf("answered while there was no majority: %v", err)
		created <- nil
	case <-time.After(4 * patience):
	}
	for i := range f.Servers {
		if i != leader {
			if f.Servers[i], err = f.Servers[i].Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}
