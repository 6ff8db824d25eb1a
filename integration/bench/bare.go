package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Subjects of the bare stream: messages of the size of a stream's frames, of which at most a stream's window is under
// way. Streams through Boxfleet are compared with it.
const (
	bareStart = "bench.bare.start" // how many frames to send
	bareData  = "bench.bare.data"
	bareRoom  = "bench.bare.room" // one message for each frame that was received
)

// bareFrames is how many frames a window holds.
const bareFrames = protocol.StreamWindow / protocol.StreamFrame

// connectBare connects to NATS without anything of Boxfleet.
func connectBare(cfg jetstream.Config) (*nats.Conn, error) {
	options := []nats.Option{nats.Name("bench-bare")}
	if cfg.Creds != "" {
		options = append(options, nats.UserCredentials(cfg.Creds))
	}
	if cfg.InProcess != nil {
		options = append(options, nats.InProcessServer(cfg.InProcess))
	}
	return nats.Connect(cfg.URL, options...)
}

// sendBare sends a bare stream whenever one is requested, until ctx ends. It connects in the same way as the worker.
func sendBare(ctx context.Context, cfg jetstream.Config) error {
	c, err := connectBare(cfg)
	if err != nil {
		return err
	}
	room := make(chan struct{}, bareFrames)
	_, err = c.Subscribe(bareRoom, func(*nats.Msg) { <-room })
	if err == nil {
		_, err = c.Subscribe(bareStart, func(m *nats.Msg) {
			frames, _ := strconv.Atoi(string(m.Data)) // the bench sends only numbers
			frame := make([]byte, protocol.StreamFrame)
			for range frames {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				if c.Publish(bareData, frame) != nil {
					return // the receiver notices that frames are missing
				}
			}
		})
	}
	if err = errors.Join(err, c.Flush()); err != nil {
		c.Close()
		return err
	}
	context.AfterFunc(ctx, c.Close)
	return nil
}

// receiveBare requests a bare stream and measures its throughput in MiB per second.
func receiveBare(ctx context.Context, c *nats.Conn, mebis int) (float64, error) {
	frames := mebis << 20 / protocol.StreamFrame
	received, missing := make(chan struct{}), frames
	sub, err := c.Subscribe(bareData, func(*nats.Msg) {
		_ = c.Publish(bareRoom, nil) // if this fails, frames are missing
		if missing--; missing == 0 {
			close(received)
		}
	})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := c.Publish(bareStart, []byte(strconv.Itoa(frames))); err != nil {
		return 0, err
	}
	select {
	case <-received:
	case <-ctx.Done():
		return 0, fmt.Errorf("the bare stream of %d MiB did not end: %w", mebis, ctx.Err())
	}
	return float64(mebis) / time.Since(start).Seconds(), sub.Unsubscribe()
}

// bareConn connects the bench itself to the NATS server of a deployment.
func (b *bench) bareConn(d *deployment) (*nats.Conn, error) {
	creds, err := d.role.Access.Unlimited()
	if err != nil {
		return nil, err
	}
	return connectBare(jetstream.Config{URL: d.role.URL, Creds: creds})
}

// dial starts a server in the container, which runs a command for each connection, and connects to the container's
// address without any help of the engine.
func (b *box) dial(ctx context.Context, port int, command string) (net.Conn, error) {
	if _, err := b.exec(ctx, "sh", "-c", server(port, command)+" >/dev/null 2>&1 &"); err != nil {
		return nil, err
	}
	var state struct {
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress string }
		}
	}
	if err := b.e.call(ctx, "GET", "/containers/"+b.id+"/json", nil, &state); err != nil {
		return nil, err
	}
	address := net.JoinHostPort(state.NetworkSettings.Networks[b.network].IPAddress, strconv.Itoa(port))
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // the server does not listen yet
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the bare container: %w", err)
		}
	}
}

// roundTrip measures the time of one byte to an echo and back.
func roundTrip(conn io.ReadWriter) (float64, error) {
	var one [1]byte
	return timed(func() error {
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, one[:])
		return err
	})
}
