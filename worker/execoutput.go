package worker

import (
	"context"
	"os"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/output"
)

// execOutput tells the publisher of an exec's output about its sandbox. It is an output.Sandbox.
type execOutput struct {
	r *execRun
	a *attachment // nil: the exec's container has ended
}

func (r *execRun) newOutput(a *attachment, x *protocol.Exec, adopted bool) *output.Exec {
	return r.s.w.output.NewExec(output.ExecConfig{
		Key: r.s.key, Exec: x, Adopted: adopted, Sandbox: execOutput{r, a}, Logger: r.s.log,
	})
}

func (o execOutput) RunDir() (run *os.Root, done func(), err error) {
	run, _, done, err = o.r.runDir(o.a)
	return run, done, err
}

func (o execOutput) Ending() bool { return o.a != nil && o.a.ending.Load() }

func (o execOutput) Stopped() *protocol.Error { return o.r.s.diskStopped() }

func (o execOutput) ReachLog(ctx context.Context) error { return o.r.s.journal.Refresh(ctx) }

// runDir opens the run directory of the container that the exec ran in: through the attachment, or, if the container
// has ended, by its path. secret authenticates the exec's exit record.
func (r *execRun) runDir(a *attachment) (run *os.Root, secret []byte, done func(), err error) {
	if a != nil {
		return a.run, a.key, func() {}, nil
	}
	generation := uint64(0)
	r.s.journal.View(func(st *protocol.State, _ uint64) { generation = st.Sandbox.Generation })
	d := r.s.directory(generation)
	if r.service != "" {
		d = d.Service(r.service)
	}
	if secret, err = d.Secret(); err != nil {
		return nil, nil, nil, err
	}
	if run, err = os.OpenRoot(d.Run()); err != nil {
		return nil, nil, nil, protocol.Errorf(protocol.NotFound, "", "open the run directory: %v", err)
	}
	return run, secret, func() { run.Close() }, nil
}

// newCommandLog returns the publisher of what a container's own command prints. name is protocol.PrimaryLog, or a
// protocol.ServiceLog; in returns the container's directory.
func (s *sandbox) newCommandLog(name string, generation uint64, in func() hostdir.Dir) *output.CommandLog {
	cfg := output.CommandLogConfig{
		Key: s.key, Name: name, RunDir: func() string { return in().Run() }, Logger: s.log,
	}
	if generation > 1 {
		cfg.Earlier = func(end [2]int64) ([2]int64, error) { return in().EarlierOutput(end) }
	}
	return s.w.output.NewCommandLog(cfg)
}
