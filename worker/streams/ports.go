package streams

import (
	"context"
	"net/netip"
	"slices"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// portEventsMost limits the events of one record, so that it is small enough.
const portEventsMost = 1000

// watchPorts tells which ports of a container have a server, from the kernel's table of its sockets. It needs no
// helper, and no process of the container can change what it tells.
func watchPorts(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error) {
	var r protocol.PortWatch
	if err := protocol.DecodeStrict(protocol.ContentMsgpack, c.Open.Request, &r); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := notBulk(c); err != nil {
		return nil, err
	}
	a, err := c.Container(ctx, r.Service)
	if err != nil {
		return nil, err
	}
	done, err := c.server.turns.ports(a)
	if err != nil {
		return nil, err
	}
	c.AtEnd(done)
	process, err := supervise.Process(ctx, a.Link)
	if err != nil {
		return nil, err
	}
	c.AtEnd(func() { process.Close() })
	read := func() (map[int][]netip.Addr, error) {
		found, err := listeners(process)
		if err != nil && protocol.AsError(err).Code != protocol.ResourceExhausted { // the process has ended
			err = c.why()
		}
		return found, err
	}
	return &jetstream.StreamAnswer{Serve: func(ctx context.Context, conn *stream.Conn) error {
		return sendPorts(ctx, conn, read)
	}}, nil
}

// sendPorts sends events until the client ends the stream.
func sendPorts(ctx context.Context, conn *stream.Conn, read func() (map[int][]netip.Addr, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() { // the client sends nothing: its end of the stream ends the watch
		defer close(ended)
		var none [1]byte
		_, _ = conn.Read(none[:]) // any end of the stream ends the watch
		cancel()
	}()
	err := pollPorts(ctx, conn, read)
	conn.Reset(err) // ends the Read
	<-ended
	return err
}

func pollPorts(ctx context.Context, conn *stream.Conn, read func() (map[int][]netip.Addr, error)) error {
	var known map[int][]netip.Addr
	for first := true; first || backoff.Sleep(ctx, portPeriod); first = false {
		found, err := read()
		if err != nil {
			return err
		}
		events := portChanges(known, found)
		if first {
			events = append(events, protocol.PortEvent{Kind: protocol.PortWatching})
		}
		for some := range slices.Chunk(events, portEventsMost) {
			record := protocol.Encode(&protocol.PortEvents{Events: some})
			if err := sendRecord(conn, protocol.FileRecordAnswer, record); err != nil {
				return err
			}
		}
		known = found
	}
	return nil
}

// portChanges returns the events that lead from one state of the ports to another one, by port.
func portChanges(before, now map[int][]netip.Addr) (events []protocol.PortEvent) {
	for port := range before {
		if _, still := now[port]; !still {
			events = append(events, protocol.PortEvent{Kind: protocol.PortClosed, Port: port})
		}
	}
	for port, addresses := range now {
		if _, old := before[port]; old {
			continue
		}
		e := protocol.PortEvent{Kind: protocol.PortListening, Port: port}
		for _, address := range addresses[:min(len(addresses), protocol.MaxPortAddresses)] {
			e.Addresses = append(e.Addresses, address.String())
		}
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b protocol.PortEvent) int { return a.Port - b.Port })
	return events
}
