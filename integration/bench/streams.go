package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// How many bytes keystrokes writes, one after another. A short run has too few for a 99th percentile.
const (
	keys      = 300
	keysShort = 20
)

// measureStreams measures the stdin of running execs.
func measureStreams(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	boxes, err := d.sandboxes(ctx, 2, spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, boxes)) }()
	if err := b.stdin(ctx, boxes[0]); err != nil {
		return err
	}
	return b.keystrokes(ctx, boxes[0], boxes[1])
}

// stdin measures how fast bytes pass through stdin to a command, and through a command to its stdout.
func (b *bench) stdin(ctx context.Context, s *sdk.Sandbox) error {
	mebis := b.pick(64, 8)
	for _, to := range []struct {
		name    string
		command []string
		want    int64
	}{
		{"stdin of an exec", []string{"sh", "-c", "exec cat >/dev/null"}, 0},
		{"stdin to stdout of cat", []string{"cat"}, int64(mebis) << 20},
	} {
		m := &measurement{Name: fmt.Sprintf("%s, %d MiB", to.name, mebis), Unit: unitThroughput, More: true}
		for range b.pick(5, 1) {
			var n counter
			start := time.Now()
			if err := execOK(ctx, s, to.command, sdk.WithStdout(&n), sdk.WithStdin(zeros(int64(mebis)<<20))); err != nil {
				return err
			}
			if int64(n) != to.want {
				return fmt.Errorf("%s: received %d of %d bytes", to.name, n, to.want)
			}
			m.Ours = append(m.Ours, float64(mebis)/time.Since(start).Seconds())
		}
		b.add(m)
	}
	return nil
}

// roundTrips writes single bytes and measures how long each takes to come back.
func roundTrips(ctx context.Context, n int, echo io.ReadWriter) (took []float64, err error) {
	for range n {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t, err := roundTrip(echo)
		if err != nil {
			return nil, err
		}
		took = append(took, t)
	}
	return took, nil
}

// keystrokes measures single bytes through stdin and back through stdout, idle and while another sandbox of the same
// worker sends a large file.
func (b *bench) keystrokes(ctx context.Context, s, busy *sdk.Sandbox) (err error) {
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"cat"}, OpenStdin: true})
	if err != nil {
		return err
	}
	w, err := x.Stdin(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	r := x.Reader(ctx, sdk.Stdout, 0)
	defer r.Close()
	cat := struct {
		io.Reader
		io.Writer
	}{r, w}
	idle := &measurement{Name: "round trip of a byte, stdin to stdout", Unit: unitMilliseconds, Target: target{ofP50, 5}}
	if idle.Ours, err = roundTrips(ctx, b.pick(keys, keysShort), cat); err != nil {
		return err
	}
	b.add(idle)
	size := int64(b.pick(1<<30, 1<<26))
	if _, err := busy.Files().Write(ctx, "/tmp/large", zeros(size)); err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	group, sending := errgroup.WithContext(ctx)
	group.Go(func() error {
		for sending.Err() == nil {
			if err := readAll(sending, busy.Files(), "/tmp/large", size); err != nil && sending.Err() == nil {
				return err
			}
		}
		return nil
	})
	beside := &measurement{Name: "round trip of a byte, stdin to stdout, beside a large transfer", Unit: unitMilliseconds,
		Target: target{ofP99, 10}.at(b.pick(keys, keysShort), keys)}
	if beside.Ours, err = roundTrips(ctx, b.pick(keys, keysShort), cat); err != nil {
		return err
	}
	b.add(beside)
	end()
	return group.Wait()
}
