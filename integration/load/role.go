package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/rights"
)

// roleVariable is the environment variable that passes a role to a process of the program.
const roleVariable = "BOXFLEET_LOAD_ROLE"

// Kinds of processes.
const (
	kindServer      = "server"
	kindCoordinator = "coordinator"
	kindWorkers     = "workers"
)

// role says what a process runs.
type role struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	URL  string `json:"url,omitempty"` // URL of NATS

	Access access.Dir `json:"access,omitempty"` // empty: NATS asks for no credentials

	Dir  string `json:"dir,omitempty"`  // directory of the NATS store
	Port int    `json:"port,omitempty"` // port of NATS; 0: any free port
	Lazy bool   `json:"lazy,omitempty"` // fill the store faster: NATS acknowledges before it writes to disk

	Snapshot time.Duration `json:"snapshot,omitempty"` // time between a coordinator's rounds of snapshots; 0: the default

	First int `json:"first,omitempty"` // number of the first worker
	Hosts int `json:"hosts,omitempty"` // number of workers
	fleet
}

// fleet holds the settings that all workers share.
type fleet struct {
	Workers int           `json:"workers,omitempty"` // number of workers in all processes
	Living  int           `json:"living,omitempty"`  // number of seeded sandboxes
	Slots   int           `json:"slots,omitempty"`   // number of slots of each host
	Create  time.Duration `json:"create,omitempty"`  // how long the engine takes for a create
}

// ready is the line that a process prints when it accepts work.
type ready struct {
	URL  string `json:"url,omitempty"`
	Port int    `json:"port,omitempty"`
}

// play runs a role until the program exits or sends SIGTERM.
func play(encoded string, commands io.Reader, answers io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	complaints := newComplaints(slog.NewTextHandler(os.Stderr, nil))
	log := slog.New(complaints)
	slog.SetDefault(log)
	own := map[string]part.Command{"complaints": func(string) (any, error) { return complaints.take(), nil }}
	serve := func(hello ready) {
		_ = json.NewEncoder(answers).Encode(hello) // fails if the program has exited
		go func() {
			part.Obey(commands, answers, own)
			stop()
		}()
	}
	switch r.Kind {
	case kindServer:
		return r.playServer(ctx, serve)
	case kindCoordinator:
		return r.playCoordinator(ctx, log, serve)
	case kindWorkers:
		return r.playWorkers(ctx, log, own, serve)
	}
	return fmt.Errorf("unknown role %q", r.Kind)
}

func (r *role) playServer(ctx context.Context, serve func(ready)) error {
	trusted, err := r.Access.Operators()
	if err != nil {
		return err
	}
	s, err := embedded.Start(embedded.Config{Dir: filepath.Join(r.Dir, "nats"), Name: "load", Port: r.Port,
		SyncLazily: r.Lazy, Operators: trusted})
	if err != nil {
		return err
	}
	defer s.Stop()
	port := r.Port
	if port == 0 {
		port = portOf(s.ClientURL())
	}
	serve(ready{URL: s.ClientURL(), Port: port})
	<-ctx.Done()
	return nil
}

func (r *role) playCoordinator(ctx context.Context, log *slog.Logger, serve func(ready)) error {
	conn, err := r.connect(ctx, rights.Identity{Role: rights.Coordinator, Name: r.Name}, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	return coordinator.Run(ctx, coordinator.Config{
		Conn: conn, Name: r.Name, Build: "load", SyncAlways: true, Logger: log, OnReady: func() { serve(ready{}) },
		Timing: coordinator.Timing{Snapshot: r.Snapshot},
	})
}

func (r *role) playWorkers(
	ctx context.Context, log *slog.Logger, own map[string]part.Command, serve func(ready),
) error {
	p := newPark(r, log)
	own["mark"] = func(string) (any, error) { return p.mark(), nil }
	own["told"] = func(string) (any, error) { return p.told(), nil }
	serve(ready{})
	return p.run(ctx)
}

// connect connects a process, or a single worker, to NATS.
func (r *role) connect(ctx context.Context, id rights.Identity, log *slog.Logger) (*jetstream.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	creds, err := r.Access.Of(id)
	if err != nil {
		return nil, err
	}
	return jetstream.Connect(ctx, jetstream.Config{URL: r.URL, Creds: creds, Name: id.Name, Logger: log})
}
