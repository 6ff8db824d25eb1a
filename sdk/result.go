package sdk

import (
	"context"
	"io"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Result says how an exec ended, and holds its collected output.
type Result struct {
	Sandbox  string    `json:"sandbox"`
	ID       string    `json:"id"`
	State    ExecState `json:"state"`               // finished, failed, cancelled or timed_out
	ExitCode *int      `json:"exit_code,omitempty"` // nil: unknown; 128+n: killed by signal n
	Reason   string    `json:"reason,omitempty"`
	Error    *Error    `json:"error,omitempty"` // why the exec failed
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`

	// The collected output: each stream up to the limit of [WithCollect]. A stream that had a writer is not collected.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`

	StdoutBytes int64 `json:"stdout_bytes"`        // bytes that the fleet kept of stdout
	StderrBytes int64 `json:"stderr_bytes"`        // bytes that the fleet kept of stderr
	Truncated   bool  `json:"truncated,omitempty"` // the command wrote more than the fleet kept

	// OutputError says why the end of the output is missing: the log of output accepted no output for too long or, with
	// reason disk_full, the host's disk was full.
	OutputError *Error `json:"output_error,omitempty"`

	// StdoutSHA256 and StderrSHA256 are the SHA-256, in hex, of the first StdoutBytes bytes of stdout and the first
	// StderrBytes bytes of stderr, as the worker published them. A hash is empty if the stream has no bytes, or if the
	// worker did not know the hash.
	StdoutSHA256 string `json:"stdout_sha256,omitempty"`
	StderrSHA256 string `json:"stderr_sha256,omitempty"`

	// OOMKills is how many processes of the sandbox the kernel killed for lack of memory during the exec.
	OOMKills int `json:"oom_kills,omitempty"`

	Incomplete bool   `json:"incomplete,omitempty"` // the fleet kept more output than Stdout and Stderr hold
	Sequence   uint64 `json:"sequence"`             // number of the event that ended the exec
}

// Err returns nil for an exec that ended by itself, whatever its exit code. Otherwise it returns an error: the exec's
// own error if the exec could not run or was interrupted; the code cancelled if the exec was cancelled;
// deadline_exceeded with reason timeout if the exec ran longer than its timeout.
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
	return protocol.Errorf(protocol.Internal, r.Reason, "exec %s failed without recording an error", r.ID)
}

// resultOf makes a result without output from the event that ended the exec.
func resultOf(e *Event) *Result {
	d := e.Exec
	r := &Result{Sandbox: e.Sandbox, ID: d.ID, State: d.State, ExitCode: d.ExitCode, Reason: e.Reason, Error: e.Error,
		Started: d.Started, Ended: d.Ended, StdoutBytes: d.StdoutBytes, StderrBytes: d.StderrBytes,
		Truncated: d.Truncated, OutputError: d.OutputError, OOMKills: d.OOMKills, Sequence: e.Sequence,
		StdoutSHA256: d.StdoutSHA256, StderrSHA256: d.StderrSHA256}
	if r.Ended.IsZero() {
		r.Ended = e.Time
	}
	return r
}

// destination receives one stream of an exec: it writes to w or, without w, collects up to limit bytes.
type destination struct {
	w     io.Writer
	start int64 // offset of the first byte that the caller wants
	limit int64
	data  []byte
}

func (d *destination) write(data []byte) error {
	if d.w != nil {
		_, err := d.w.Write(data)
		if err != nil {
			return &typedError{protocol.Errorf(protocol.Cancelled, "", "write output: %v", err), err}
		}
		return nil
	}
	room := d.limit - int64(len(d.data))
	if int64(len(data)) > room {
		data = data[:room]
	}
	d.data = append(d.data, data...)
	return nil
}

func (d *destination) wants() bool { return d.w != nil || int64(len(d.data)) < d.limit }

// isIncomplete reports whether fewer than total bytes of the stream were collected.
func (d *destination) isIncomplete(total int64) bool {
	return d.w == nil && d.start+int64(len(d.data)) < total
}

// destinations is the sink of a call that returns a Result.
type destinations struct{ stdout, stderr destination }

func (s *settings) destinations() *destinations {
	return &destinations{
		stdout: destination{w: s.stdout, limit: s.collect, start: s.offsets[Stdout]},
		stderr: destination{w: s.stderr, limit: s.collect, start: s.offsets[Stderr]},
	}
}

// streams reports whether the caller wants output as it arrives.
func (s *settings) streams() bool { return s.stdout != nil || s.stderr != nil }

func (d *destinations) of(stream string) *destination {
	if stream == Stdout {
		return &d.stdout
	}
	return &d.stderr
}

func (d *destinations) write(stream string, _ int64, data []byte) error {
	return d.of(stream).write(data)
}

func (d *destinations) wants(stream string) bool { return d.of(stream).wants() }

// result returns the result of an ended exec, with its output.
func (d *destinations) result(ctx context.Context, t *tail, e *Event) (*Result, error) {
	r := resultOf(e)
	err := t.drain(ctx, e)
	r.Stdout, r.Stderr = d.stdout.data, d.stderr.data
	r.Incomplete = d.stdout.isIncomplete(r.StdoutBytes) || d.stderr.isIncomplete(r.StderrBytes)
	if err != nil {
		return r, failed(ctx, err, "read the output of exec "+r.ID)
	}
	return r, r.Err()
}
