package output

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// Exec publishes the output of one exec from its files. Only one goroutine may use it.
//
// If a NATS server without a cluster is killed, it loses the output that it acknowledged last. After each reconnect,
// Exec therefore compares the acknowledged output with the output in the log.
type Exec struct {
	feed
	cfg ExecConfig

	checked    bool   // the published offsets were read from the log, or nothing was published before
	reconnects uint64 // number of reconnects when the published offsets were last known to be right
	hashSaved  bool   // the file with the hash states may exist
	unsure     bool   // the log's last chunk may have been sent after a reconnect, so chunks before it may be lost

	refusedSince time.Time // when the log stopped storing output although NATS answers; zero: the log stores output
	ending       bool      // the worker is ending all commands in the sandbox
	deadline     time.Time // the exec's end does not wait for its output after this time; zero: no deadline
	syncAfter    time.Duration
}

// ExecConfig describes an exec. All fields are required.
type ExecConfig struct {
	Key     protocol.SandboxKey
	Exec    *protocol.Exec
	Adopted bool // an earlier worker may have published a part of the output
	Sandbox Sandbox
	Logger  *slog.Logger

	// HashFile is the path of the file with the hash states of the output. The container cannot see the file.
	HashFile string
}

// Sandbox is the sandbox in which an exec runs.
type Sandbox interface {
	// RunDir opens the run directory of the exec's container. The caller must call the returned function done.
	RunDir() (run *os.Root, done func(), err error)
	// Ending reports whether the worker is ending all commands in the sandbox.
	Ending() bool
	// Stopped returns why the disk watch stopped the sandbox, or nil if it did not.
	Stopped() *protocol.Error
	// ReachLog returns an error if the event log cannot be read now.
	ReachLog(ctx context.Context) error
}

// lastTry is the shortest time for which the worker tries to publish output after the exec has ended, or after NATS is
// back.
const lastTry = 2 * time.Second

// delayedError says that the log has not stored a part of the output yet. This output stays on disk until it is
// published.
type delayedError struct{ err error }

func (e *delayedError) Error() string { return "output is not published yet: " + e.err.Error() }

var (
	errLate        = protocol.Errorf(protocol.DeadlineExceeded, "", "the time for publishing the output has passed")
	errReconnected = protocol.Errorf(protocol.Unavailable, "", "the connection to NATS was lost during publishing")
)

// NewExec returns the publisher of an exec's output.
//
// An exec with a timeout has a deadline for its output. If the log does not have the exec's end a minute after the exec
// should have ended, the coordinators declare its exit code unknown. Output that the log cannot store in time must not
// delay an exit code that this worker knows.
func (h *Host) NewExec(cfg ExecConfig) *Exec {
	p := &Exec{
		feed: feed{host: h, key: cfg.Key, name: cfg.Exec.ID}, cfg: cfg, syncAfter: syncAfter,
		checked: !cfg.Adopted, reconnects: h.conn.Reconnects(),
	}
	age := time.Duration(0)
	if cfg.Adopted {
		age = h.conn.Now().Sub(cfg.Exec.StartedAt)
	}
	p.SetAge(age)
	return p
}

// SetAge sets the deadline of the output. age is how long ago the exec was started.
func (p *Exec) SetAge(age time.Duration) {
	if spec := &p.cfg.Exec.Spec; spec.Timeout > 0 {
		p.deadline = time.Now().Add(spec.Timeout.Std() + spec.Grace.Std() + p.host.cfg.After - max(age, 0))
	}
}

// extend moves the deadline so that at least lastTry is left.
func (p *Exec) extend() {
	if last := time.Now().Add(lastTry); !p.deadline.IsZero() && p.deadline.Before(last) {
		p.deadline = last
	}
}

// late reports whether the exec's end no longer waits for its output. Once the worker ends all commands in the sandbox,
// the end waits for at most lastTry.
func (p *Exec) late() bool {
	if !p.ending && p.cfg.Sandbox.Ending() {
		p.ending = true
		if last := time.Now().Add(lastTry); p.deadline.IsZero() || p.deadline.After(last) {
			p.deadline = last
		}
	}
	return !p.deadline.IsZero() && time.Now().After(p.deadline) || p.cfg.Sandbox.Stopped() != nil
}

// Published returns how many bytes of each stream the log has.
func (p *Exec) Published() (stdout, stderr int64) {
	return p.streams[0].published, p.streams[1].published
}

// NothingPublished reports whether the log is known to have no output of the exec. It reads the log at most once.
func (p *Exec) NothingPublished(ctx context.Context) (bool, error) {
	if !p.checked {
		if err := p.check(ctx); err != nil && !isDelayed(err) {
			return false, err
		}
	}
	stdout, stderr := p.Published()
	return p.checked && stdout == 0 && stderr == 0, nil
}

// current reports whether the published offsets are known to match the log.
func (p *Exec) current() bool {
	return p.checked && !p.unsure && p.reconnects == p.host.conn.Reconnects()
}

// check reads the published offsets from the log, unless they are current.
func (p *Exec) check(ctx context.Context) error {
	if p.current() {
		return nil
	}
	reconnects := p.host.conn.Reconnects()
	here := []protocol.OutputHost{{ID: p.host.cfg.HostID}} // an exec has no output on other hosts
	stdout, stderr, err := p.host.conn.OutputEnd(ctx, p.storedOn(here))
	if err != nil {
		return p.delayed(err)
	}
	if p.unsure { // publish all output again; readers skip the bytes that they already have
		stdout, stderr = 0, 0
	}
	if !p.checked {
		p.readFreed()
		p.restoreHashes()
	}
	empty := !p.unsure && stdout == 0 && stderr == 0
	p.streams[0].moveTo(stdout, empty)
	p.streams[1].moveTo(stderr, empty)
	p.checked, p.unsure, p.reconnects = true, false, reconnects
	return nil
}

// delayed records that the log stores no output at present, and returns a delayedError. Time without NATS does not
// count as time in which the log refuses output: without NATS, the exec's end could not be appended either.
func (p *Exec) delayed(err error) error {
	if !p.host.conn.Connected() {
		p.refusedSince = time.Time{}
		p.extend()
	} else if p.refusedSince.IsZero() {
		p.refusedSince = time.Now()
	}
	p.cfg.Logger.Warn("could not publish the output of an exec; retrying", "exec", p.name, "error", err)
	return &delayedError{err}
}

func isDelayed(err error) bool { return errors.As(err, new(*delayedError)) }

// Publish publishes both streams up to these sizes. If it returns a time other than 0, the caller must call Publish
// again after that time, because the log did not store all output, or because published output must still be freed on
// disk.
func (p *Exec) Publish(ctx context.Context, stdout, stderr int64) (again time.Duration, err error) {
	err = p.publish(ctx, stdout, stderr)
	switch {
	case isDelayed(err):
		return retryPause, nil
	case err == nil && p.mayFree():
		return syncAfter, nil
	}
	return 0, err
}

// PublishAll publishes the rest of the output of an exec that has ended. If the log lacks a part of the output, the
// result lost says why.
func (p *Exec) PublishAll(ctx context.Context, stdout, stderr int64) (lost *protocol.Error, err error) {
	p.extend()
	for {
		err := p.publish(ctx, stdout, stderr)
		var delayed *delayedError
		switch {
		case err == nil && p.current():
			return nil, nil
		case err == nil:
			continue // the connection was lost and is back, so compare with the log again
		case !errors.As(err, &delayed):
			return nil, err
		}
		if lost := p.giveUp(ctx, delayed); lost != nil {
			return lost, nil
		}
		if !backoff.Sleep(ctx, retryPause) {
			return nil, ctx.Err()
		}
	}
}

// giveUp returns why the exec's end should not wait for its output any longer, or nil if it should wait. The end stops
// waiting if the log has stored no output for too long, or if the deadline passes before the log has all output. While
// the event log cannot be read, giveUp returns nil, because the end cannot be appended then.
func (p *Exec) giveUp(ctx context.Context, delayed *delayedError) *protocol.Error {
	if why := p.cfg.Sandbox.Stopped(); why != nil { // the output stream may be stored on the same full disk
		return why
	}
	silent := !p.refusedSince.IsZero() && time.Since(p.refusedSince) >= p.host.cfg.Patience
	switch {
	case !silent && !p.late() || p.cfg.Sandbox.ReachLog(ctx) != nil:
		return nil
	case p.refusedSince.IsZero() && p.ending:
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonOutputNotKept,
			"not all output could be stored within %s after the sandbox was ended", lastTry)
	case p.refusedSince.IsZero():
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonOutputNotKept,
			"not all output could be stored within %s after the exec's timeout", p.host.cfg.After)
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonOutputNotKept, "output could not be stored for %s: %v",
		time.Since(p.refusedSince).Round(time.Second), delayed.err)
}

// publish publishes both streams up to these sizes. The error is a *delayedError if the caller should try again.
func (p *Exec) publish(ctx context.Context, stdout, stderr int64) error {
	if err := p.check(ctx); err != nil {
		return err
	}
	if stdout <= p.streams[0].published && stderr <= p.streams[1].published && !p.mayFree() {
		return nil
	}
	run, done, err := p.cfg.Sandbox.RunDir()
	if err != nil { // the directory was removed
		p.streams[0].ended, p.streams[1].ended = true, true
		return nil
	}
	defer done()
	for i, size := range [2]int64{stdout, stderr} {
		if s := &p.streams[i]; size > s.published && !s.ended {
			if err := p.publishStream(ctx, run, i, size); err != nil {
				return err
			}
		}
	}
	return p.freeLater(ctx, run)
}

func (p *Exec) publishStream(ctx context.Context, run *os.Root, i int, size int64) error {
	f, err := supervise.OpenOutput(run, p.name, names[i])
	if err != nil {
		p.cfg.Logger.Warn("could not open an output file of an exec; the rest of the stream is lost",
			"exec", p.name, "stream", names[i], "error", err)
		p.streams[i].ended = true
		return nil
	}
	defer f.Close()
	s := &p.streams[i]
	if err := s.hashUpTo(ctx, f, s.published); err != nil {
		return err
	}
	err = p.publishFile(ctx, f, i, size, p)
	if err == nil || isDelayed(err) || err == ctx.Err() {
		return err
	}
	return p.delayed(err) // the next try begins after the last acknowledged byte
}

func (p *Exec) mayContinue() error {
	if p.late() {
		return &delayedError{errLate}
	}
	return nil
}

func (p *Exec) sent() error {
	if !p.current() {
		p.unsure = true
		return errReconnected
	}
	p.host.cfg.Probe("output")
	return nil
}

func (p *Exec) stored(f *os.File, s *stream, at int64, data []byte) {
	p.refusedSince = time.Time{}
	s.add(at, data)
	p.free(f, s)
}
