package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// measureMemory measures a coordinator with many ended sandboxes, and a tenth of that number of living ones: how long
// the coordinator takes to start, and its memory afterwards.
func measureMemory(ctx context.Context, b *bench) error {
	for _, n := range b.past {
		if err := b.coordinatorOf(ctx, n, n/10); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) coordinatorOf(ctx context.Context, over, living int) (err error) {
	r := b.role
	r.Dir = path.Join(b.dir, fmt.Sprintf("of-%d", over))
	nats := r
	nats.NATS, nats.Lazy = true, true
	server, at, err := startNATS(ctx, nats)
	if err != nil {
		return err
	}
	defer func() {
		if server != nil {
			server.Kill()
		}
	}()
	last, err := fill(ctx, at.URL, over, living)
	if err != nil {
		return err
	}
	server.Stop()
	nats.Lazy = false
	if server, at, err = startNATS(ctx, nats); err != nil {
		return err
	}
	r.Decides, r.URL, r.Snapshot = true, at.URL, time.Second
	first, err := startCoordinator(ctx, r)
	if err != nil {
		return err
	}
	err = awaitSnapshots(ctx, at.URL, last)
	first.Kill()
	if err != nil {
		return err
	}
	of := fmt.Sprintf("coordinator of %d sandboxes, %d of them ended", over+living, over)
	start := &measurement{Name: of + ": start", Unit: unitMilliseconds,
		Target: target{ofP50, 3000}.at(over, pastOfGoals)}
	memory := &measurement{Name: "  its memory then", Unit: unitMemory,
		Target: target{ofWorst, 400}.at(over, pastOfGoals)}
	for range b.pick(3, 1) {
		var p *part.Process
		took, err := timed(func() (err error) { p, err = startCoordinator(ctx, r); return err })
		if err != nil {
			return err
		}
		rss, _, err := part.Resident(p.Pid())
		p.Kill()
		if err != nil {
			return err
		}
		start.Ours, memory.Ours = append(start.Ours, took), append(memory.Ours, rss)
	}
	b.add(start)
	b.add(memory)
	return nil
}

func startNATS(ctx context.Context, r role) (p *part.Process, at hello, err error) {
	if p, err = part.Start(roleVariable, r); err == nil {
		err = p.Answer(ctx, &at)
	}
	return p, at, err
}

func startCoordinator(ctx context.Context, r role) (*part.Process, error) {
	p, err := part.Start(roleVariable, r)
	if err == nil {
		err = p.Answer(ctx, new(hello))
	}
	if err != nil && p != nil {
		p.Kill()
	}
	return p, err
}

// fill writes the histories of ended and living sandboxes. It returns the ids of the last ended and the last living
// sandbox.
func fill(ctx context.Context, url string, over, living int) (last []string, err error) {
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: url, Name: "bench-past"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.Provision(ctx, jetstream.Assets{}); err != nil {
		return nil, err
	}
	w, err := seed.Connect(url, "")
	if err != nil {
		return nil, err
	}
	messages, at := uint64(0), time.Now().UTC()
	write := func(b *protocol.Batch) error { messages++; return w.Batch(b) }
	for i := range over + living {
		h := seed.Sandbox(fmt.Sprintf("past-%07d", i), "w1", "host-1", "container", spec(), at, write)
		if i < over {
			h.Delete(at)
		}
		if err := errors.Join(h.Err(), w.Reserve(h)); err != nil {
			return nil, err
		}
		if i == over-1 || i == over+living-1 {
			last = append(last, h.ID)
		}
	}
	return last, w.Close(ctx, messages)
}

// awaitSnapshots waits until the coordinator has stored snapshots of the given sandboxes.
func awaitSnapshots(ctx context.Context, url string, of []string) error {
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: url, Name: "bench-past"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Open(ctx); err != nil {
		return err
	}
	for _, id := range of {
		for {
			_, err := conn.Snapshot(ctx, protocol.DefaultTenant, id)
			if err == nil {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("no snapshot of %s: %w", id, errors.Join(ctx.Err(), err))
			}
		}
	}
	// The coordinator writes its checkpoint a little after the last snapshot. Wait for the checkpoint.
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	return ctx.Err()
}
