package sdk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	ensurePause   = 10 * time.Millisecond // pause before another request of Ensure; it doubles up to ensureMost
	ensureMost    = time.Second
	ensureNoRooms = 6 // how many requests of Ensure may find no room in a quota, about 1 s in all
)

// Ensure returns the living sandbox that has this name, found or created, and waits until it is ready. Any number of
// clients may ensure the same name at once, and may repeat the call after a lost connection or a restart: they all get
// the same sandbox.
//
//   - A sandbox that is pending is waited for. A sandbox that is stopped, or being stopped, is resumed.
//   - A sandbox that has failed, is deleted or is being deleted does not have its name any more. Ensure creates a new
//     one at once, also if the sandbox is deleted while Ensure waits for it.
//   - If the sandbox fails while Ensure waits for it, Ensure returns both the handle and the error. The next Ensure
//     creates a new one.
//
// The sandbox must have been created with the same spec. Two specs are the same if the callers passed equal specs, even
// if the operator has changed the defaults since. They are also the same if they are equal once the tenant's present
// defaults are filled in. Defaults of workers do not count. With another spec Ensure fails with failed_precondition,
// reason spec_differs. The message lists the names of the fields that differ, not their values. If only one field
// differs, the error names it as its field.
//
// With WithWait(false), Ensure returns when the create or the resume is accepted; it still waits for the end of a stop.
// If ctx ends first, the sandbox may exist, and its creation continues; repeating the call is safe.
//
// Options: [WithWait], [WithYAML]. Errors: invalid_argument naming the field; already_exists with reason name_is_id if
// the name is or was the id of a sandbox; the sandbox's own error if it failed; the errors of [Client.Create] and
// [Sandbox.Resume].
func (c *Client) Ensure(ctx context.Context, name string, spec SandboxSpec, opts ...EnsureOption) (*Sandbox, error) {
	o := settingsOf(opts, EnsureOption.forEnsure)
	o.name = &name
	if err := protocol.ValidateName("name", name); err != nil {
		return nil, err
	}
	if o.yaml != nil {
		var err error
		if spec, err = specFromYAML(ctx, c, o, spec); err != nil {
			return nil, err
		}
		if o.id != nil {
			return nil, protocol.Invalid("id", "cannot be set in a document for Ensure, which finds a sandbox by its name")
		}
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	_, bounded := ctx.Deadline()
	giveUp, noRooms := time.Now().Add(c.giveUpAfter()), 0
	for pause := backoff.New(ensurePause, ensureMost); ; {
		s, err := c.ensureOnce(ctx, o, &spec)
		if protocol.CodeOf(err) == protocol.ResourceExhausted && protocol.AsError(err).Reason == protocol.ReasonQuotaWaiting {
			// A concurrent Ensure of the same name may have taken the quota's last room, and not yet have taken the name.
			if noRooms++; noRooms >= ensureNoRooms {
				return nil, err
			}
		} else if err == nil || !mayEnsureAgain(err) {
			return s, err
		} else if o.acceptedOnly && !bounded && time.Now().After(giveUp) {
			return nil, err
		}
		d := pause.Next()
		if !backoff.Sleep(ctx, d/2+rand.N(d/2)) {
			return nil, ctxEnded(ctx.Err(), fmt.Sprintf("ensure %s (%v)", name, err))
		}
	}
}

// ensureOnce sends one request, and brings the sandbox of the answer to the state that the caller waits for. Each
// request has its own id, because a refused request may find another sandbox when it is repeated.
func (c *Client) ensureOnce(ctx context.Context, o *settings, spec *SandboxSpec) (*Sandbox, error) {
	id := NewID()
	mode := submitForever
	if o.acceptedOnly {
		mode = submitBounded
	}
	r := Request{Verb: protocol.VerbCreate, Sandbox: id, ID: id,
		Payload: protocol.Request{Sandbox: spec, Name: *o.name, Ensure: true}}
	reply, err := c.ask(ctx, r, mode)
	if err != nil {
		return nil, err
	}
	s := newSandbox(c, reply.Sandbox)
	switch info := s.Info(); {
	case info.Desired == protocol.StateStopped:
		if err := s.WaitStopped(ctx); err != nil {
			return s, err
		}
		return s, s.Resume(ctx, WithWait(!o.acceptedOnly))
	case o.acceptedOnly, info.State == protocol.StateReady:
		return s, endedError(info.State, info.Error)
	}
	return s, s.WaitReady(ctx)
}

// mayEnsureAgain reports whether Ensure sends another request after an error: the name is being given to another
// sandbox, or the sandbox that Ensure found has left the state in which Ensure found it.
func mayEnsureAgain(err error) bool {
	e := protocol.AsError(err)
	switch e.Reason {
	case protocol.ReasonNameTaken:
		return e.Code == protocol.AlreadyExists
	case protocol.ReasonSandboxDeleted, protocol.ReasonSandboxStopped, protocol.ReasonInvalidState:
		return e.Code == protocol.FailedPrecondition
	}
	return false
}
