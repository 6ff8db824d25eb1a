package sdk

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Exec is a handle of an exec.
type Exec struct {
	client  *Client
	sandbox *Sandbox
	info    protocol.Exec
}

// Info is the exec as the handle saw it when it was made.
func (x *Exec) Info() protocol.Exec { return x.info }

// ID is the exec's id.
func (x *Exec) ID() string { return x.info.ID }

// Result is how an exec ended.
type Result struct {
	Sandbox  string             `json:"sandbox"`
	ID       string             `json:"id"`
	State    protocol.ExecState `json:"state"`               // finished, failed, cancelled or timed_out
	ExitCode *int               `json:"exit_code,omitempty"` // nil: not known. 128+n: died of signal n
	Reason   string             `json:"reason,omitempty"`
	Error    *protocol.Error    `json:"error,omitempty"` // why it failed
	Started  time.Time          `json:"started,omitzero"`
	Ended    time.Time          `json:"ended,omitzero"`

	// What was collected of the output: up to the cap of [WithCollect], and nothing of a stream
	// that had a writer.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`

	StdoutBytes int64 `json:"stdout_bytes"`        // that were kept in all
	StderrBytes int64 `json:"stderr_bytes"`        //
	Truncated   bool  `json:"truncated,omitempty"` // the command wrote more than was kept

	// OutputError says why the end of the output is missing: the log of output took none for too long, or, with
	// reason disk_full, the disk of its host was full.
	OutputError *protocol.Error `json:"output_error,omitempty"`

	OOMKills   int    `json:"oom_kills,omitempty"`  // processes of the sandbox that the kernel killed for want of memory while it ran
	Incomplete bool   `json:"incomplete,omitempty"` // more was kept than is in Stdout and Stderr, because of the cap
	Sequence   uint64 `json:"sequence"`             // of the event that ended it
	Record     uint64 `json:"-"`                    // of that event's message
}

// Err is nil for an exec that ended by itself, with whatever exit code. Otherwise it says why:
// the exec's own error where it could not run or was interrupted, cancelled, or
// deadline_exceeded with reason timeout.
func (r *Result) Err() error {
	switch r.State {
	case protocol.ExecStateFinished:
		return nil
	case protocol.ExecStateCancelled:
		return protocol.Errorf(protocol.Cancelled, r.Reason, "exec %s was cancelled", r.ID)
	case protocol.ExecStateTimedOut:
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonTimeout, "exec %s ran longer than its timeout", r.ID)
	}
	if r.Error != nil {
		return r.Error
	}
	return protocol.Errorf(protocol.Internal, r.Reason, "exec %s failed and does not say why", r.ID)
}

func resultOf(e *protocol.Event) *Result {
	d := e.Exec
	r := &Result{Sandbox: e.Sandbox, ID: d.ID, State: d.State, ExitCode: d.ExitCode, Reason: e.Reason, Error: e.Error,
		Started: d.Started, Ended: d.Ended, StdoutBytes: d.StdoutBytes, StderrBytes: d.StderrBytes,
		Truncated: d.Truncated, OutputError: d.OutputError, OOMKills: d.OOMKills, Sequence: e.Sequence, Record: e.Record}
	if r.Ended.IsZero() {
		r.Ended = e.Time
	}
	return r
}

// Exec runs a command in the sandbox and waits for its end. The output is streamed into the
// writers of [WithStdout] and [WithStderr] as it comes; what has no writer is collected after the
// end, at most [DefaultCollect] bytes or what [WithCollect] says.
//
// A command that exits non-zero is a result and no error. The result is returned beside the error
// of [Result.Err] where the exec was not run to its own end. When ctx ends the exec goes on: cancel
// it with [Sandbox.Cancel], or wait again with [Sandbox.GetExec] and [Exec.Wait].
//
// Options: [WithID], [WithRequestID], [WithStdout], [WithStderr], [WithCollect]. Errors:
// invalid_argument naming the field; not_found; failed_precondition where the sandbox is not
// ready; already_exists for an id used in this sandbox before.
func (s *Sandbox) Exec(ctx context.Context, spec protocol.ExecSpec, opts ...Option) (*Result, error) {
	call, err := newCall("Exec", opts, "WithID", "WithRequestID", "WithStdout", "WithStderr", "WithCollect")
	if err != nil {
		return nil, err
	}
	id, err := s.checkExec(ctx, &spec, findForever)
	if err != nil {
		return nil, err
	}
	out := call.destinations()
	t, err := s.client.tail(id, call.id, out, call.streams())
	if err != nil {
		return nil, failed(ctx, err, "exec")
	}
	defer t.close()
	sub := s.client.submit(ctx, execRequest(id, &spec, call), submitForever)
	defer sub.stop()
	e, err := t.untilEnd(ctx, sub)
	if err != nil {
		return nil, failed(ctx, err, "exec "+call.id)
	}
	s.saw(e.Sequence)
	return out.result(ctx, t, e)
}

// Start runs a command in the sandbox and waits only until that is accepted: then it is durable,
// and will be done. Options: [WithID], [WithRequestID]. Errors as of [Sandbox.Exec].
func (s *Sandbox) Start(ctx context.Context, spec protocol.ExecSpec, opts ...Option) (*Exec, error) {
	call, err := newCall("Start", opts, "WithID", "WithRequestID")
	if err != nil {
		return nil, err
	}
	id, err := s.checkExec(ctx, &spec, findBounded)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.ask(ctx, execRequest(id, &spec, call), submitBounded)
	if err != nil {
		return nil, err
	}
	return s.exec(reply.Exec), nil
}

// exec makes a handle of an exec as an answer shows it.
func (s *Sandbox) exec(info *protocol.Exec) *Exec {
	s.saw(info.Sequence)
	return &Exec{client: s.client, sandbox: s, info: *info}
}

// checkExec checks an exec, and finds its sandbox.
func (s *Sandbox) checkExec(ctx context.Context, spec *protocol.ExecSpec, mode findMode) (id string, err error) {
	if err := protocol.ValidateID("sandbox", s.ID()); err != nil {
		return "", err
	}
	if err := spec.Validate(); err != nil {
		return "", err
	}
	return s.find(ctx, mode)
}

func execRequest(sandbox string, spec *protocol.ExecSpec, call *call) Request {
	return Request{Verb: protocol.VerbExec, Sandbox: sandbox, ID: call.request, Payload: protocol.Request{ExecID: call.id, Exec: spec}}
}

// RunCode runs code with an interpreter of the sandbox's image, such as "python3", "node" or "sh".
// The code goes in on stdin, never through a shell or an argument: at most protocol.MaxStdin
// bytes. Options and errors as of [Sandbox.Exec]; invalid_argument for an interpreter that is not
// a plain name.
func (s *Sandbox) RunCode(ctx context.Context, interpreter, code string, opts ...Option) (*Result, error) {
	if err := protocol.ValidateInterpreter("interpreter", interpreter); err != nil {
		return nil, err
	}
	return s.Exec(ctx, protocol.ExecSpec{Command: []string{interpreter, "-"}, Stdin: []byte(code)}, opts...)
}

// Cancel asks for the end of an exec: its whole process tree gets TERM and, after the exec's
// grace, KILL. It returns when that is accepted; [Exec.Wait] waits for the end. To cancel one that
// has ended is no error. Option: [WithRequestID]. Errors: not_found.
func (s *Sandbox) Cancel(ctx context.Context, exec string, opts ...Option) error {
	call, err := newCall("Cancel", opts, "WithRequestID")
	if err != nil {
		return err
	}
	if err := protocol.ValidateID("exec", exec); err != nil {
		return err
	}
	id, err := s.find(ctx, findBounded)
	if err != nil {
		return err
	}
	r := Request{Verb: protocol.VerbCancel, Sandbox: id, ID: call.request, Payload: protocol.Request{ExecID: exec}}
	_, err = s.client.ask(ctx, r, submitBounded)
	if err != nil && protocol.AsError(err).Reason == protocol.ReasonExecTerminal {
		return nil
	}
	return err
}

// GetExec reads an exec. Errors: not_found.
func (s *Sandbox) GetExec(ctx context.Context, exec string) (*Exec, error) {
	if err := protocol.ValidateID("sandbox", s.ID()); err != nil {
		return nil, err
	}
	if err := protocol.ValidateID("exec", exec); err != nil {
		return nil, err
	}
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.Query(ctx, protocol.EndpointExec, protocol.Query{Sandbox: id, Exec: exec, MinSequence: s.newest()})
	if err != nil {
		return nil, err
	}
	return s.exec(reply.Exec), nil
}

// ExecsOptions selects execs of a sandbox.
type ExecsOptions struct {
	States []protocol.ExecState // any of them; none: all
	Limit  int                  // per page, 1 to 1000; 0: 100
	Page   string               // the next of the page before
}

// Execs reads one page of the sandbox's execs. next is empty on the last page.
func (s *Sandbox) Execs(ctx context.Context, o ExecsOptions) (execs []*Exec, next string, err error) {
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, "", err
	}
	states := make([]string, len(o.States))
	for i, state := range o.States {
		states[i] = string(state)
	}
	reply, err := s.client.Query(ctx, protocol.EndpointExecs, protocol.Query{Sandbox: id, MinSequence: s.newest(), States: states, Limit: o.Limit, Page: o.Page})
	if err != nil {
		return nil, "", err
	}
	for _, info := range reply.Execs {
		execs = append(execs, s.exec(info))
	}
	return execs, reply.Next, nil
}

// Cancel asks for the exec's end; see [Sandbox.Cancel].
func (x *Exec) Cancel(ctx context.Context, opts ...Option) error {
	return x.sandbox.Cancel(ctx, x.info.ID, opts...)
}

// Wait waits for the exec's end, whoever started it and whenever that was. With writers it streams
// the output, from the first byte on. Options: [WithStdout], [WithStderr], [WithCollect]. Result and
// errors as of [Sandbox.Exec].
func (x *Exec) Wait(ctx context.Context, opts ...Option) (*Result, error) {
	call, err := newCall("Wait", opts, "WithStdout", "WithStderr", "WithCollect")
	if err != nil {
		return nil, err
	}
	out := call.destinations()
	t, err := x.client.tail(x.info.Sandbox, x.info.ID, out, call.streams())
	if err != nil {
		return nil, failed(ctx, err, "wait")
	}
	defer t.close()
	e, err := t.catchUpAndFollow(ctx, &x.info)
	if err != nil {
		return nil, failed(ctx, err, "wait for exec "+x.info.ID)
	}
	x.sandbox.saw(e.Sequence)
	return out.result(ctx, t, e)
}
