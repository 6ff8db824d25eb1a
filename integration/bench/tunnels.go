package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Ports of the servers that measureTunnels starts in a sandbox.
const (
	echoPort  = 7001 // sends back what it gets
	zerosPort = 7002 // sends zeros
)

// How many bytes tunnelEcho sends, one after another. A short run has too few for a 99th percentile.
const (
	echoes      = 1000
	echoesShort = 20
)

// measureTunnels measures the throughput of connections into a sandbox beside that of a bare NATS stream, and the round
// trip of a byte beside that of a direct connection to a container.
func measureTunnels(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	boxes, err := d.sandboxes(ctx, 1, spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, boxes)) }()
	s, mebis := boxes[0], b.pick(1024, 64)
	if err := serve(ctx, s, zerosPort, "dd if=/dev/zero bs=65536 count="+fmt.Sprint(mebis*16)); err != nil {
		return err
	}
	if err := serve(ctx, s, echoPort, "cat"); err != nil {
		return err
	}
	bare, err := b.bareConn(d)
	if err != nil {
		return err
	}
	defer bare.Close()
	fast := &measurement{Name: fmt.Sprintf("connection into a sandbox, %d MiB; bare: the same NATS messages", mebis),
		Unit: unitThroughput, More: true, Target: target{ofRatio, 0.6}}
	for range b.pick(3, 1) {
		rate, err := drain(ctx, s, mebis)
		if err != nil {
			return err
		}
		bareRate, err := receiveBare(ctx, bare, mebis)
		if err != nil {
			return err
		}
		fast.Ours, fast.Bare = append(fast.Ours, rate), append(fast.Bare, bareRate)
	}
	b.add(fast)
	return b.tunnelEcho(ctx, s)
}

// drain reads everything from the server of zeros, and returns the throughput.
func drain(ctx context.Context, s *sdk.Sandbox, mebis int) (float64, error) {
	conn, err := s.DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", zerosPort))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	n, err := io.Copy(io.Discard, conn)
	took := time.Since(start).Seconds()
	if err = errors.Join(err, conn.Close()); err == nil && n != int64(mebis)<<20 {
		err = fmt.Errorf("received %d of %d MiB", n>>20, mebis)
	}
	return float64(mebis) / took, err
}

// tunnelEcho measures the round trip of a byte through a connection into a sandbox and through a direct one, in turn.
func (b *bench) tunnelEcho(ctx context.Context, s *sdk.Sandbox) (err error) {
	conn, err := s.DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", echoPort))
	if err != nil {
		return err
	}
	defer conn.Close()
	bare, err := b.engine.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.remove(ctx)) }()
	direct, err := bare.dial(ctx, echoPort, "cat")
	if err != nil {
		return err
	}
	defer direct.Close()
	echo := &measurement{Name: "round trip of a byte, connection into a sandbox; bare: direct", Unit: unitMilliseconds}
	added := &measurement{Name: "  added to the direct connection", Unit: unitMilliseconds, Target: target{ofP50, 1}}
	tail := &measurement{Name: "  added, 99th percentile", Unit: unitMilliseconds,
		Target: target{ofP99, 10}.at(b.pick(echoes, echoesShort), echoes)}
	for range b.pick(echoes, echoesShort) {
		ours, err := roundTrip(conn)
		if err != nil {
			return err
		}
		theirs, err := roundTrip(direct)
		if err != nil {
			return err
		}
		echo.Ours, echo.Bare = append(echo.Ours, ours), append(echo.Bare, theirs)
		added.Ours = append(added.Ours, ours-theirs)
	}
	tail.Ours = added.Ours
	b.add(echo)
	b.add(added)
	b.add(tail)
	return nil
}

// server returns a shell command that runs a command for each connection to a port.
func server(port int, command string) string {
	return fmt.Sprintf("echo 'exec %s 2>/dev/null' >/tmp/serve%d; exec nc -ll -p %d -e sh /tmp/serve%d", command, port,
		port, port)
}

// serve starts a server that runs a command for each connection, and waits until it listens.
func serve(ctx context.Context, s *sdk.Sandbox, port int, command string) error {
	if _, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", server(port, command)}}); err != nil {
		return err
	}
	return s.WaitForPort(ctx, port)
}
