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

// The queue drops what it knows already, so nobody answers a repeat: what it asked for is found.
func TestARepeatedExtendFindsItsOwn(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Extend(ctx, time.Hour, sdk.WithRequestID("r1")); err != nil {
		t.Fatal(err)
	}
	ends := s.Info().ExpiresAt
	if err := s.Extend(ctx, time.Hour, sdk.WithRequestID("r1")); err != nil || !s.Info().ExpiresAt.Equal(ends) {
		t.Errorf("the same request again: %v, %s became %s", err, ends, s.Info().ExpiresAt)
	}
	if err := s.Extend(ctx, 2*time.Hour, sdk.WithRequestID("r2")); err != nil || s.Info().ExpiresAt.Before(ends.Add(time.Hour)) {
		t.Errorf("another one: %v, %s became %s", err, ends, s.Info().ExpiresAt)
	}
}

// A coordinator that is away for a while ends no wait.
func TestAWaitForAnImageOutlastsTheLossOfTheCoordinator(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(time.Minute)
	c := f.Processes("coordinator")[0]
	c.Stop()
	waited := make(chan error, 1)
	go func() {
		_, err := f.Client.WaitImage(ctx, &protocol.WantedImage{Ref: "a/b:c"}, nil)
		waited <- err
	}()
	select {
	case err := <-waited:
		t.Fatalf("it ended while no coordinator answered: %v", err)
	case <-time.After(2 * time.Second):
	}
	c.Restart()
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
