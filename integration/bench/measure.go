package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/integration/part"
)

// phases are the measurements, in the order in which they run.
var phases = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"create", measureCreate},
	{"stop", measureStop},
	{"exec", measureExec},
	{"tls", measureTLS},
	{"output", measureOutput},
	{"neighbour", measureNeighbour},
	{"files", measureFiles},
	{"streams", measureStreams},
	{"tunnels", measureTunnels},
	{"environments", measureEnvironments},
	{"stream-memory", measureStreamMemory},
	{"replay", measureReplay},
	{"restart", measureRestart},
	{"age", measureAge},
	{"memory", measureMemory},
}

// A phase that runs longer than phaseLimit counts as hung. The limit for phases that first write a long history is
// pastLimit.
const (
	phaseLimit = 2 * time.Minute
	pastLimit  = 10 * time.Minute
)

func phaseNames() []string {
	var names []string
	for _, p := range phases {
		names = append(names, p.name)
	}
	return names
}

// bench is the state that the phases share.
type bench struct {
	options
	dir    string // directory for everything that the bench writes
	role   role   // settings that all processes of the deployment share
	engine *engine
	up     *deployment // NATS, coordinator and worker in one process; nil until a phase needs it
	report *report
	stderr io.Writer
}

// measure runs the phases. If a phase fails, its error is reported and the next phase starts.
func measure(ctx context.Context, o options, stderr io.Writer) (_ *report, err error) {
	b := &bench{options: o, stderr: stderr,
		report: &report{Version: 1, Started: time.Now().UTC(), Short: o.short, Failed: map[string]string{}}}
	defer func() { err = errors.Join(err, b.cleanUp()) }()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	for _, p := range phases {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		start := time.Now()
		fmt.Fprintf(stderr, "%s ...", p.name)
		limit := phaseLimit
		if p.name == "age" || p.name == "memory" {
			limit = pastLimit
		}
		limited, cancel := context.WithTimeout(ctx, limit)
		err := p.measure(limited, b)
		cancel()
		fmt.Fprintf(stderr, " %.1f s\n", time.Since(start).Seconds())
		if ctx.Err() != nil {
			return nil, errors.New("interrupted")
		}
		if err != nil {
			b.report.Failed[p.name] = err.Error()
		}
	}
	if b.up != nil {
		if err := b.upMemory(); err != nil {
			return nil, err
		}
	}
	for _, m := range b.report.Measurements {
		m.judge(b.options.slack())
	}
	b.report.Seconds = time.Since(b.report.Started).Seconds()
	return b.report, nil
}

func (b *bench) prepare(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "boxfleet-bench-"); err != nil {
		return err
	}
	if b.engine, err = connectEngine(ctx); err != nil {
		return err
	}
	b.role = role{Engine: b.engine.host}
	if b.role.Supervisor, err = buildSupervisor(ctx, b.dir); err != nil {
		return err
	}
	b.report.Commit = commit(ctx)
	b.report.Machine, err = describeMachine(ctx, b.engine)
	return err
}

// deployed returns the deployment that most phases use. The first call starts it.
func (b *bench) deployed(ctx context.Context) (*deployment, error) {
	if b.up != nil {
		return b.up, nil
	}
	r := b.role
	r.Dir = b.dir + "/up"
	d, err := b.deployWithRights(ctx, r, false)
	if err != nil {
		return nil, err
	}
	b.up = d
	return d, nil
}

// add adds a measurement to the report.
func (b *bench) add(m *measurement) { b.report.Measurements = append(b.report.Measurements, m) }

func (b *bench) upMemory() error {
	rss, pss, err := part.Resident(b.up.server.Pid())
	if err != nil {
		return err
	}
	b.add(&measurement{Name: "memory of NATS, coordinator and worker, after all that", Unit: unitMemory,
		Ours: []float64{rss}})
	b.add(&measurement{Name: "  proportional share (PSS)", Unit: unitMemory, Ours: []float64{pss}})
	return nil
}

func (b *bench) cleanUp() error {
	var errs []error
	if b.up != nil {
		errs = append(errs, b.up.end())
	}
	if b.engine != nil && b.engine.docker != nil {
		errs = append(errs, b.engine.close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// timed measures how long a call takes.
func timed(call func() error) (float64, error) {
	start := time.Now()
	err := call()
	return milliseconds(time.Since(start)), err
}
