package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// spec returns the spec of every sandbox.
func spec() protocol.SandboxSpec {
	return protocol.SandboxSpec{Image: image, CPU: 0.1, Memory: 64 << 20, Labels: map[string]string{"made-by": "load"}}
}

// creator creates sandboxes and counts refusals.
type creator struct {
	client *sdk.Client

	mu      sync.Mutex
	made    int
	refused map[string]int // number of refusals; the key is the code and the reason
}

func newCreator(c *sdk.Client) *creator { return &creator{client: c, refused: map[string]int{}} }

func (c *creator) create(ctx context.Context) {
	c.mu.Lock()
	c.made++
	id := fmt.Sprintf("%s%07d", burstPrefix, c.made)
	c.mu.Unlock()
	_, err := c.client.Create(ctx, spec(), sdk.WithID(id), sdk.WithWait(false))
	if err == nil {
		return
	}
	e := protocol.AsError(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[strings.TrimSuffix(string(e.Code)+" "+e.Reason, " ")]++
}

// closed creates n sandboxes. The parameter parallel is how many creates may be in progress at once.
func (c *creator) closed(ctx context.Context, n, parallel int) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for range n {
		group.Go(func() error { c.create(ctx); return nil })
	}
	_ = group.Wait() // the goroutines return no errors: they count refusals
}

// open creates n sandboxes at a fixed rate. It does not wait until earlier creates are accepted.
func (c *creator) open(ctx context.Context, n int, rate float64) {
	var group errgroup.Group
	begin := time.Now()
	for i := range n {
		due := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if !sleep(ctx, time.Until(due)) {
			break
		}
		group.Go(func() error { c.create(ctx); return nil })
	}
	_ = group.Wait() // the goroutines return no errors: they count refusals
}
