package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// deployment is the set of processes under load.
type deployment struct {
	options
	dir      string
	access   access.Dir // empty: NATS asks for no credentials
	server   *part.Process
	at       ready                    // addresses of NATS
	deciding map[string]*part.Process // coordinators, by name
	parks    []*part.Process          // worker processes
	client   *sdk.Client
}

// startServer starts NATS. A restart uses the same port and the same store.
func (d *deployment) startServer(ctx context.Context, lazy bool) (err error) {
	d.server, err = part.Start(roleVariable, role{Kind: kindServer, Dir: d.dir, Port: d.at.Port, Lazy: lazy,
		Access: d.access})
	if err != nil {
		return err
	}
	return d.server.Answer(ctx, &d.at)
}

// fill writes the sandboxes that exist before the run, through a server that does not sync each write. A coordinator
// then writes their snapshots, because a fleet with these histories would have snapshots.
func (d *deployment) fill(ctx context.Context) error {
	if err := d.startServer(ctx, true); err != nil {
		return err
	}
	creds, err := d.access.Unlimited()
	if err != nil {
		return err
	}
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: d.at.URL, Creds: creds, Name: "load-fill"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Provision(ctx, jetstream.Assets{}); err != nil {
		return err
	}
	w, err := seed.Connect(d.at.URL, creds)
	if err != nil {
		return err
	}
	messages, at := uint64(0), time.Now().UTC()
	write := func(b *protocol.Batch) error { messages++; return w.Batch(b) }
	for i := range d.living + d.over {
		id := livingID(i)
		if i >= d.living {
			id = fmt.Sprintf("over-%07d", i)
		}
		h := seed.Sandbox(id, workerName(i%d.workers), hostID(i%d.workers), "container-"+id, spec(), at, write)
		if i >= d.living {
			h.Delete(at)
		}
		if err := errors.Join(h.Err(), w.Reserve(h)); err != nil {
			return err
		}
	}
	if err := w.Close(ctx, messages); err != nil {
		return err
	}
	conn.Close()
	old, err := part.Start(roleVariable, role{Kind: kindCoordinator, Name: "filling", URL: d.at.URL,
		Access: d.access, Snapshot: time.Second})
	if err != nil {
		return err
	}
	defer old.Stop()
	if err := old.Answer(ctx, new(ready)); err != nil {
		return err
	}
	if err := d.untilWritten(ctx); err != nil {
		return err
	}
	old.Stop()
	d.server.Stop()
	return nil
}

// untilWritten waits until snapshots include everything in the log. A coordinator that still writes snapshots is not
// idle, and cannot be measured as idle.
func (d *deployment) untilWritten(ctx context.Context) error {
	creds, err := d.access.Unlimited()
	if err != nil {
		return err
	}
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: d.at.URL, Creds: creds, Name: "load-rest"})
	if err != nil {
		return err
	}
	defer conn.Close()
	last, err := conn.LastRecord(ctx)
	if err != nil {
		return err
	}
	return until(ctx, "every sandbox has a snapshot", askEvery, func() (bool, string, error) {
		at, _, err := conn.Checkpoint(ctx)
		return at.Record >= last, fmt.Sprintf("up to record %d of %d", at.Record, last), err
	})
}

// startWorkers starts the worker processes, which share the hosts. It does not wait until the hosts are ready.
func (d *deployment) startWorkers(ctx context.Context) error {
	for i := range d.workers {
		if _, err := d.access.Of(workerIdentity(i)); err != nil {
			return err
		}
	}
	first := 0
	for i := range d.processes {
		n := (d.workers - first) / (d.processes - i)
		p, err := part.Start(roleVariable, role{Kind: kindWorkers, URL: d.at.URL, Access: d.access, First: first, Hosts: n,
			fleet: fleet{Workers: d.workers, Living: d.living, Create: d.create, Slots: d.slots()}})
		if err != nil {
			return err
		}
		d.parks = append(d.parks, p)
		first += n
	}
	for _, p := range d.parks {
		if err := p.Answer(ctx, new(ready)); err != nil {
			return err
		}
	}
	return nil
}

// slots returns the capacity of a host: twice the number of sandboxes that each host has if they are spread evenly.
func (d *deployment) slots() int {
	return max(100, 2*(d.living+d.sandboxes)/d.workers+10)
}

// startCoordinators starts the coordinators one after another and returns when all accept work. took is the time that
// the first coordinator needed.
func (d *deployment) startCoordinators(ctx context.Context) (took time.Duration, err error) {
	d.deciding = map[string]*part.Process{}
	for i := range d.coordinators {
		name, begin := fmt.Sprintf("c%d", i+1), time.Now()
		p, err := part.Start(roleVariable, role{Kind: kindCoordinator, Name: name, URL: d.at.URL,
			Access: d.access})
		if err != nil {
			return 0, err
		}
		d.deciding[name] = p
		if err := p.Answer(ctx, new(ready)); err != nil {
			return 0, err
		}
		if i == 0 {
			took = time.Since(begin)
		}
	}
	return took, nil
}

func (d *deployment) connect(ctx context.Context) (err error) {
	creds, err := d.access.Of(rights.Identity{Role: rights.Operator, Name: "load"})
	if err != nil {
		return err
	}
	d.client, err = sdk.Connect(ctx, sdk.Options{URL: d.at.URL, Creds: creds, Name: "load",
		Logger: slog.New(slog.DiscardHandler)})
	return err
}

// hostStates counts the hosts by state.
func (d *deployment) hostStates(ctx context.Context) (map[protocol.HostState]int, error) {
	hosts, err := sdk.ReadAll(d.client.Hosts().List(ctx))
	if err != nil {
		return nil, err
	}
	states := map[protocol.HostState]int{}
	for _, h := range hosts {
		states[h.State]++
	}
	return states, nil
}

// allAlive waits until all hosts are ready.
func (d *deployment) allAlive(ctx context.Context) error {
	return until(ctx, "all hosts are ready", askEvery, func() (bool, string, error) {
		states, err := d.hostStates(ctx)
		return states[protocol.HostReady] == d.workers, fmt.Sprint(states), err
	})
}

// heard asks all worker processes how many notifications they have received.
func (d *deployment) heard(ctx context.Context, command string) (heard, error) {
	var sum heard
	for _, p := range d.parks {
		var h heard
		if err := p.Ask(ctx, command, &h); err != nil {
			return sum, err
		}
		sum.add(h)
	}
	return sum, nil
}

// end kills all processes and removes the deployment's directory.
func (d *deployment) end() error {
	if d.client != nil {
		d.client.Close()
	}
	for _, p := range append(d.parks, d.server) {
		if p != nil {
			p.Kill()
		}
	}
	for _, p := range d.deciding {
		p.Kill()
	}
	return os.RemoveAll(d.dir)
}

func (d *deployment) makeDir() (err error) {
	d.dir, err = os.MkdirTemp("", "boxfleet-load-")
	if err == nil && !d.insecure {
		d.access, err = access.New(d.dir)
	}
	return err
}

// profiles makes the coordinators and NATS write CPU profiles of a phase until end is called.
func (d *deployment) profiles(ctx context.Context, phase string) (end func() error, err error) {
	if d.profile == "" {
		return func() error { return nil }, nil
	}
	dir, err := filepath.Abs(d.profile)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	all := map[string]*part.Process{"nats": d.server}
	for name, p := range d.deciding {
		all[name] = p
	}
	for name, p := range all {
		if err := p.Ask(ctx, part.CommandProfile+" "+filepath.Join(dir, phase+"-"+name+".prof"), nil); err != nil {
			return nil, err
		}
	}
	return func() error {
		var errs []error
		for _, p := range all {
			errs = append(errs, p.Ask(ctx, part.CommandEndProfile, nil))
		}
		return errors.Join(errs...)
	}, nil
}

// Pauses between two polls: lookEvery for the state of this process, askEvery for questions to other processes. A list
// of a thousand hosts costs a coordinator 10 ms.
const (
	lookEvery = 10 * time.Millisecond
	askEvery  = 500 * time.Millisecond
)

// until polls a condition. Its error names the condition and the last state.
func until(ctx context.Context, what string, every time.Duration, is func() (ok bool, now string, err error)) error {
	for {
		ok, now, err := is()
		if ok && err == nil {
			return nil
		}
		if !sleep(ctx, every) {
			return fmt.Errorf("timed out waiting until %s; last state: %s (%w)", what, now, errors.Join(err, ctx.Err()))
		}
	}
}
