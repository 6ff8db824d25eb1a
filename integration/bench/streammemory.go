package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/sdk"
)

// What the worker carries when its memory is measured.
const (
	idleConnections = 90
	busyConnections = 5 // in addition to the same number of reads of a file
	memoryGoal      = 80
	samplePause     = 50 * time.Millisecond
)

// measureStreamMemory measures the memory of a worker with a hundred streams, ten of which are busy. It reports the
// largest sample.
func measureStreamMemory(ctx context.Context, b *bench) (err error) {
	r := b.role
	r.Dir = path.Join(b.dir, "streams-apart")
	d, err := b.deployWithRights(ctx, r, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	boxes, err := d.sandboxes(ctx, 1, spec())
	if err != nil {
		return err
	}
	s := boxes[0]
	if err := serve(ctx, s, zerosPort, "cat /dev/zero"); err != nil {
		return err
	}
	if err := serve(ctx, s, echoPort, "cat"); err != nil {
		return err
	}
	size := int64(b.pick(256<<20, 32<<20))
	if _, err := s.Files().Write(ctx, "/tmp/read", zeros(size)); err != nil {
		return err
	}
	for range idleConnections {
		conn, err := s.DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", echoPort))
		if err != nil {
			return err
		}
		defer conn.Close()
	}
	most, err := mostMemory(d.worker.Pid(), func() error { return carry(ctx, s, size) })
	if err != nil {
		return err
	}
	b.add(&measurement{Name: fmt.Sprintf("worker with %d streams, %d of them busy: most memory",
		idleConnections+2*busyConnections, 2*busyConnections), Unit: unitMemory, Target: target{ofWorst, memoryGoal},
		Ours: []float64{most}})
	return nil
}

// carry reads this many bytes from each of several connections, and the same number of files of this size.
func carry(ctx context.Context, s *sdk.Sandbox, size int64) error {
	group, ctx := errgroup.WithContext(ctx)
	for range busyConnections {
		group.Go(func() error { return readAll(ctx, s.Files(), "/tmp/read", size) })
		group.Go(func() error {
			conn, err := s.DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", zerosPort))
			if err != nil {
				return err
			}
			_, err = io.CopyN(io.Discard, conn, size)
			return errors.Join(err, conn.Close())
		})
	}
	return group.Wait()
}

// mostMemory samples the resident memory of a process in MiB while f runs.
func mostMemory(pid int, f func() error) (most float64, err error) {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	tick := time.NewTicker(samplePause)
	defer tick.Stop()
	for {
		rss, _, sampled := part.Resident(pid)
		most = max(most, rss)
		select {
		case err := <-ended:
			return most, errors.Join(err, sampled)
		case <-tick.C:
		}
	}
}
