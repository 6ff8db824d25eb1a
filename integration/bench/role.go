package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/certs"
	"github.com/boxfleet/boxfleet/integration/part"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/worker"
)

// roleVariable is the environment variable that passes a role to a process of the bench.
const roleVariable = "BOXFLEET_BENCH_ROLE"

// role says which parts of the deployment a process runs.
type role struct {
	Server     bool   `json:"server,omitempty"`  // NATS and a coordinator
	NATS       bool   `json:"nats,omitempty"`    // NATS alone
	Decides    bool   `json:"decides,omitempty"` // a coordinator alone
	Worker     bool   `json:"worker,omitempty"`
	URL        string `json:"url,omitempty"` // URL of NATS, for a role that does not run NATS
	Dir        string `json:"dir"`
	Engine     string `json:"engine"`
	Supervisor string `json:"supervisor"`

	Access access.Dir `json:"access,omitempty"` // empty: NATS asks for no credentials

	// TCP makes the coordinator and the worker connect to NATS over TCP, as if it ran on another machine. TLS are the
	// files with which they do so; its certificate is also that of NATS.
	TCP bool          `json:"tcp,omitempty"`
	TLS jetstream.TLS `json:"tls,omitzero"`

	Port int `json:"port,omitempty"` // port of NATS; 0: any free port
	// Lazy makes NATS acknowledge messages before it writes them to disk. This fills the store faster.
	Lazy     bool          `json:"lazy,omitempty"`
	Snapshot time.Duration `json:"snapshot,omitempty"` // interval of the coordinator's snapshots; 0: the default
}

// Names of the coordinator and the worker. They differ, because with credentials no two roles may have the same name.
const (
	coordinatorName = "bench-coordinator"
	workerName      = "bench"
)

// hello is the line that a process prints when it accepts work.
type hello struct {
	URL        string `json:"url"`
	Deployment string `json:"deployment"`
}

// play runs a role until the bench exits or sends SIGTERM. Package part documents the commands.
func play(encoded string, commands io.Reader, answers io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	url, connect := r.URL, jetstream.Config{URL: r.URL, TLS: r.TLS, Name: "bench"}
	if r.Server || r.NATS {
		server, err := r.startServer()
		if err != nil {
			return err
		}
		defer server.Stop()
		url, connect.URL = server.ClientURL(), server.ClientURL()
		if !r.TCP {
			connect.InProcess = server
		}
	}
	if r.Server || r.Decides {
		var err error
		if connect.Creds, err = r.Access.Of(rights.Identity{Role: rights.Coordinator, Name: coordinatorName}); err != nil {
			return err
		}
		if err := r.start(ctx, group, connect, coordinate); err != nil {
			return err
		}
	}
	if r.Worker {
		var err error
		if connect.Creds, err = r.Access.Worker(workerName, r.Engine); err != nil {
			return err
		}
		if err := r.start(ctx, group, connect, work); err != nil {
			return err
		}
	}
	if r.Server && r.Worker {
		if err := r.startBare(ctx, connect); err != nil {
			return err
		}
	}
	deployment, err := "", error(nil)
	if !r.NATS { // a deployment exists only with a coordinator or a worker
		deployment, err = deploymentOf(ctx, connect)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(answers).Encode(hello{URL: url, Deployment: deployment}); err != nil {
		return err
	}
	go func() {
		part.Obey(commands, answers, nil)
		stop()
	}()
	<-ctx.Done() // a failed part also ends ctx
	return group.Wait()
}

// startBare makes this process send bare streams.
func (r role) startBare(ctx context.Context, connect jetstream.Config) (err error) {
	if connect.TLS.CA != "" {
		return nil // no phase compares with a bare stream over TLS
	}
	if connect.Creds, err = r.Access.Unlimited(); err != nil {
		return err
	}
	return sendBare(ctx, connect)
}

// startServer starts the role's NATS server in this process.
func (r *role) startServer() (*embedded.Server, error) {
	trusted, err := r.Access.Operators()
	if err != nil {
		return nil, err
	}
	config := embedded.Config{Dir: filepath.Join(r.Dir, "nats"), Name: "bench", Port: r.Port, SyncLazily: r.Lazy,
		Operators: trusted}
	if r.TLS.Cert != "" {
		if config.TLS, err = certs.Server(r.TLS.Cert, r.TLS.Key); err != nil {
			return nil, err
		}
	}
	return embedded.Start(config)
}

// runner runs one part of the deployment. Each part has its own connection.
type runner func(ctx context.Context, r role, conn *jetstream.Conn, ready func()) error

// start runs a part of the deployment in the group and waits until the part accepts work.
func (r role) start(ctx context.Context, group *errgroup.Group, cfg jetstream.Config, run runner) error {
	connecting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := jetstream.Connect(connecting, cfg)
	if err != nil {
		return err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	group.Go(func() error {
		defer conn.Close()
		err := run(ctx, r, conn, func() { close(ready) })
		ended <- err
		return err
	})
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return fmt.Errorf("a part of the deployment ended before it was ready: %w", err)
	}
}

func coordinate(ctx context.Context, r role, conn *jetstream.Conn, ready func()) error {
	return coordinator.Run(ctx, coordinator.Config{Conn: conn, Name: coordinatorName, Build: "bench", SyncAlways: true,
		OnReady: ready,
		Timing:  coordinator.Timing{Snapshot: r.Snapshot}})
}

func work(ctx context.Context, r role, conn *jetstream.Conn, ready func()) error {
	creds, err := r.Access.Worker(workerName, r.Engine)
	if err != nil {
		return err
	}
	return worker.Run(ctx, worker.Config{
		OnHost: func(ctx context.Context, host string) error {
			return r.Access.OnHost(ctx, conn, workerName, creds, host)
		},
		Conn: conn, Name: workerName, Build: "bench", StateDir: filepath.Join(r.Dir, "worker"),
		Engine: r.Engine, Supervisor: r.Supervisor, OnReady: ready,
	})
}

func deploymentOf(ctx context.Context, cfg jetstream.Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := jetstream.Connect(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.Open(ctx); err != nil {
		return "", err
	}
	return conn.Deployment(), nil
}
