package sdk

import (
	"context"
	"io"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
)

// Exec is a handle for one exec. It is safe for concurrent use. A handle holds no resources in the fleet; dropping it
// does not affect the exec.
type Exec struct {
	client  *Client
	sandbox *Sandbox
	id      string

	mu   sync.Mutex
	info ExecInfo
}

func newExec(s *Sandbox, info *ExecInfo) *Exec {
	s.saw(info.Sequence)
	return &Exec{client: s.client, sandbox: s, id: info.ID, info: *info}
}

// Exec runs a command in the sandbox and waits for its end. Output is streamed into the writers of [WithStdout] and
// [WithStderr] as it arrives. A stream without a writer is collected into the Result, up to [DefaultCollect] bytes or
// the limit of [WithCollect].
//
// A command that exits non-zero is a result, not an error. If the exec did not end by itself, Exec returns both the
// result and the error of [Result.Err].
//
// When ctx ends, the exec continues. To be able to wait for it again with [Sandbox.ExecByID] and [Exec.Wait], or to end
// it with [Exec.Cancel], give it an id with [WithID].
//
// Options: [WithID], [WithRequestID], [WithStdout], [WithStderr], [WithCollect], [WithSensitiveEnv]. Errors:
// invalid_argument naming the field; not_found; failed_precondition if the sandbox is not ready; already_exists naming
// the field id if the id was used in this sandbox before, or naming the field request if the request id was used for
// something else; the errors of [Exec.Output].
func (s *Sandbox) Exec(ctx context.Context, spec ExecSpec, opts ...ExecOption) (*Result, error) {
	o := settingsOf(opts, ExecOption.forExec)
	input, err := takeStdin(o.stdin, &spec)
	if err != nil {
		return nil, err
	}
	id, err := prepareExec(ctx, s, o, &spec, findForever)
	if err != nil {
		return nil, err
	}
	out := o.destinations()
	t, err := startTail(s.client, id, *o.id, out, o.streams())
	if err != nil {
		return nil, failed(ctx, err, "exec")
	}
	defer t.close()
	if t.feed.host() == "" {
		t.feed.isOn(s.Info().HostID)
	}
	sub := s.client.submit(ctx, execRequest(id, &spec, o), submitForever)
	defer sub.stop()
	copying := s.startStdin(ctx, *o.id, input)
	e, err := t.untilEnd(ctx, sub)
	inputErr := copying.stop()
	if err != nil {
		return nil, failed(ctx, err, "exec "+*o.id)
	}
	s.saw(e.Sequence)
	result, err := out.result(ctx, t, e)
	if err == nil && inputErr != nil {
		err = failed(ctx, inputErr, "write the input of exec "+*o.id)
	}
	return result, err
}

// Start runs a command in the sandbox and returns once the request is accepted. An accepted request is durable and will
// be carried out. [Exec.Wait] waits for the end of the exec. If ctx ends first, the request may still be carried out;
// to learn whether it was, repeat the call with the same [WithRequestID]. Without a deadline Start gives up after
// [RequestTries] times the request timeout.
//
// Options: [WithID], [WithRequestID], [WithSensitiveEnv]. Errors are the same as for [Sandbox.Exec].
func (s *Sandbox) Start(ctx context.Context, spec ExecSpec, opts ...StartOption) (*Exec, error) {
	o := settingsOf(opts, StartOption.forStart)
	input, err := takeStdin(o.stdin, &spec)
	if err != nil {
		return nil, err
	}
	id, err := prepareExec(ctx, s, o, &spec, findBounded)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.ask(ctx, execRequest(id, &spec, o), submitBounded)
	if err != nil {
		return nil, err
	}
	x := newExec(s, reply.Exec)
	s.startStdin(s.client.ctx, x.ID(), input) // the copy ends with the exec, not with ctx
	return x, nil
}

// stdinCopy is a copy to the stdin of an exec, in the background.
type stdinCopy struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

// startStdin starts to copy a reader to the stdin of an exec. A nil reader is not copied.
func (s *Sandbox) startStdin(ctx context.Context, exec string, r io.Reader) *stdinCopy {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &stdinCopy{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer cancel()
		if err := s.ExecByID(exec).copyStdin(ctx, r); err != nil && ctx.Err() == nil {
			c.err = err
			s.client.log.Warn("the input of an exec is not complete", "sandbox", s.ID(), "exec", exec, "error", err)
		}
	}()
	return c
}

// stop ends the copy, and returns why it was not complete. It does not wait for the reader.
func (c *stdinCopy) stop() error {
	if c == nil {
		return nil
	}
	c.cancel()
	<-c.done
	return c.err
}

// prepareExec checks the spec and the options of an exec, and returns the id of the sandbox.
func prepareExec(ctx context.Context, s *Sandbox, o *settings, spec *ExecSpec, mode findMode) (id string, err error) {
	for _, check := range []func() error{
		o.checkReading, o.fillIDs, func() error { return protocol.ValidateID("sandbox", s.ID()) },
		func() (err error) { spec.SensitiveEnv, err = o.sealEnv(ctx, s.client, spec.SensitiveEnv); return err },
		spec.Validate,
	} {
		if err := check(); err != nil {
			return "", err
		}
	}
	return s.find(ctx, mode)
}

func execRequest(sandbox string, spec *ExecSpec, o *settings) Request {
	payload := protocol.Request{ExecID: *o.id, Exec: spec}
	return Request{Verb: protocol.VerbExec, Sandbox: sandbox, ID: *o.request, Payload: payload}
}

// RunCode runs code with an interpreter of the sandbox's image, such as "python3", "node" or "sh". The code is passed
// on stdin, never through a shell or an argument. It has at most [protocol.MaxStdin] bytes. Options, errors and the
// effect of ctx are the same as for [Sandbox.Exec]. An interpreter that is not a plain name also fails with
// invalid_argument.
func (s *Sandbox) RunCode(ctx context.Context, interpreter, code string, opts ...ExecOption) (*Result, error) {
	if err := protocol.ValidateInterpreter("interpreter", interpreter); err != nil {
		return nil, err
	}
	return s.Exec(ctx, ExecSpec{Command: []string{interpreter, "-"}, Stdin: []byte(code)}, opts...)
}

// ExecByID makes a handle from the id of an exec without asking whether the exec exists. Its Info is empty until a call
// on the handle learns the state of the exec.
func (s *Sandbox) ExecByID(id string) *Exec {
	sandbox, _ := s.ref()
	return &Exec{client: s.client, sandbox: s, id: id, info: ExecInfo{Tenant: s.client.tenant, Sandbox: sandbox, ID: id}}
}

// GetExec reads an exec, once. Errors: not_found; unavailable if no coordinator is running.
func (s *Sandbox) GetExec(ctx context.Context, id string) (*Exec, error) {
	x := s.ExecByID(id)
	if err := x.Refresh(ctx); err != nil {
		return nil, err
	}
	return x, nil
}

// ID returns the exec's id.
func (x *Exec) ID() string { return x.id }

// Sandbox returns the handle of the exec's sandbox.
func (x *Exec) Sandbox() *Sandbox { return x.sandbox }

// Info returns the state of the exec as the last call on this handle learned it: the call that made the handle,
// [Exec.Refresh], [Exec.Cancel] or [Exec.Wait]. Wait sets the final state. Info does not change by itself while the
// exec runs or ends; call Refresh for the current state.
func (x *Exec) Info() ExecInfo {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.info
}

// learn stores the state from an answer, unless the handle knows a newer state.
func (x *Exec) learn(info *ExecInfo) {
	x.sandbox.saw(info.Sequence)
	x.mu.Lock()
	defer x.mu.Unlock()
	if info.Sequence >= x.info.Sequence {
		x.info = *info
	}
}

// find checks the ids of the exec and its sandbox, and returns the id of the sandbox.
func (x *Exec) find(ctx context.Context, mode findMode) (sandbox string, err error) {
	if err := protocol.ValidateID("sandbox", x.sandbox.ID()); err != nil {
		return "", err
	}
	if err := protocol.ValidateID("exec", x.ID()); err != nil {
		return "", err
	}
	return x.sandbox.find(ctx, mode)
}

// Refresh reads the exec again, once, and updates Info. It never replaces Info with an older state. Errors: not_found;
// unavailable if no coordinator is running.
func (x *Exec) Refresh(ctx context.Context) error {
	sandbox, err := x.find(ctx, findOnce)
	if err != nil {
		return err
	}
	reply, err := x.client.query(ctx, protocol.EndpointExec,
		protocol.Query{Sandbox: sandbox, Exec: x.ID(), MinSequence: x.sandbox.newest()})
	if err != nil {
		return err
	}
	x.learn(reply.Exec)
	return nil
}

// Cancel requests the end of the exec: its whole process tree gets TERM and, after the exec's grace period, KILL.
// Cancel returns once the request is accepted; [Exec.Wait] waits for the end. Cancelling an exec that has ended
// succeeds. If ctx ends first, the request may still be carried out; repeating the call is safe.
//
// Option: [WithRequestID]. Errors: not_found.
func (x *Exec) Cancel(ctx context.Context, opts ...RequestOption) error {
	o := settingsOf(opts, RequestOption.forRequest)
	if err := o.fillIDs(); err != nil {
		return err
	}
	sandbox, err := x.find(ctx, findBounded)
	if err != nil {
		return err
	}
	r := Request{Verb: protocol.VerbCancel, Sandbox: sandbox, ID: *o.request, Payload: protocol.Request{ExecID: x.ID()}}
	reply, err := x.client.ask(ctx, r, submitBounded)
	switch {
	case err == nil && reply.Exec != nil:
		x.learn(reply.Exec)
	case err != nil && protocol.AsError(err).Reason == protocol.ReasonExecTerminal:
		return nil
	}
	return err
}

// Wait waits for the end of the exec, no matter who started it or when, and updates Info. The writers of [WithStdout]
// and [WithStderr] get the whole output or, with [WithOffset], the output after the given offsets. Ending ctx ends only
// the wait. Result and errors are the same as for [Sandbox.Exec].
//
// Options: [WithStdout], [WithStderr], [WithCollect], [WithOffset].
func (x *Exec) Wait(ctx context.Context, opts ...WaitOption) (*Result, error) {
	o := settingsOf(opts, WaitOption.forWait)
	if err := o.checkReading(); err != nil {
		return nil, err
	}
	sandbox, err := x.find(ctx, findForever)
	if err != nil {
		return nil, err
	}
	out := o.destinations()
	t, err := startTail(x.client, sandbox, x.ID(), out, o.streams())
	if err != nil {
		return nil, failed(ctx, err, "wait")
	}
	defer t.close()
	t.skipTo(o.offsets)
	info := x.Info()
	e, err := t.catchUpAndFollow(ctx, &info)
	if err != nil {
		return nil, failed(ctx, err, "wait for exec "+x.ID())
	}
	x.learnEnd(e)
	return out.result(ctx, t, e)
}

// learnEnd updates Info with the event that ended the exec.
func (x *Exec) learnEnd(e *Event) {
	info, d := x.Info(), e.Exec
	if e.Sequence <= info.Sequence {
		return
	}
	info.State, info.ExitCode, info.Reason, info.Error = d.State, d.ExitCode, e.Reason, e.Error
	info.StartedAt, info.EndedAt = d.Started, d.Ended
	if info.EndedAt.IsZero() {
		info.EndedAt = e.Time
	}
	info.StdoutBytes, info.StderrBytes, info.Truncated, info.Inline = d.StdoutBytes, d.StderrBytes, d.Truncated, d.Inline
	info.OOMKills, info.OutputError = d.OOMKills, d.OutputError
	info.StdoutSHA256, info.StderrSHA256 = d.StdoutSHA256, d.StderrSHA256
	info.Sequence, info.Record = e.Sequence, e.Record
	x.learn(&info)
}
