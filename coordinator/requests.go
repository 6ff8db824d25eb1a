package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/coordinator/execindex"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// requestHandler decides requests.
type requestHandler struct {
	*coordinator
	names            *nameRegistry
	gate             *gate
	refusals         refusals
	announced        atomic.Pointer[protocol.Error] // why requests wait, as last announced to clients
	deciding, ending chan struct{}                  // slots for requests that are being decided
}

func newRequestHandler(c *coordinator) *requestHandler {
	h := &requestHandler{
		coordinator: c, names: &nameRegistry{c},
		deciding: make(chan struct{}, restAtOnce), ending: make(chan struct{}, endingAtOnce),
	}
	h.gate = newGate(watchedLog{c}, h.announceWaiting)
	h.gate.turn = func() { c.cfg.OnTurn(gateLoop, turnWithin) }
	return h
}

// run decides the requests of the queue until ctx ends.
func (h *requestHandler) run(ctx context.Context) error {
	stop, err := h.announceElections()
	if err != nil {
		return err
	}
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.conn.ConsumeRequests(ctx, h.handle) })
	group.Go(func() error {
		defer h.cfg.OnTurn(gateLoop, 0)
		return h.gate.run(ctx)
	})
	return group.Wait()
}

// announceWaiting announces to all clients why creates and execs wait. A nil why announces that they are decided again.
func (h *requestHandler) announceWaiting(why *protocol.Error) {
	before := h.announced.Swap(why)
	h.condition.change(func(s *condition) { s.held = why })
	if (before == nil) != (why == nil) || why != nil && before.Reason != why.Reason {
		if why != nil {
			h.log.Warn("the event log accepts no appends: requests for sandboxes and execs wait until it does", "error", why)
		} else {
			h.log.Info("the event log accepts appends again: requests for sandboxes and execs are decided")
		}
	}
	h.publishStatus(why, false)
}

// announceElections tells clients each time a stream has a new leader, because live messages may then be missing. It
// ends when stop is called.
func (h *requestHandler) announceElections() (stop func(), err error) {
	return h.conn.OnLoss(func() { h.publishStatus(h.announced.Load(), true) })
}

func (h *requestHandler) publishStatus(why *protocol.Error, elected bool) {
	s := &protocol.Status{
		Version: protocol.Version, Coordinator: h.cfg.Name, Waiting: why, Elected: elected, Time: h.conn.Now(),
	}
	if err := h.conn.PublishStatus(s); err != nil {
		h.log.Debug("could not publish this coordinator's status", "error", err)
	}
}

// handle decides one request. A refusal is an answer too. While the log accepts no appends, the request waits here
// without a time limit. A request that keeps failing although the log accepts appends becomes a dead letter after
// [jetstream.MaxAttempts] attempts. handle returns an error only if ctx ends first; another coordinator then gets the
// request. Every step before the answer can be repeated harmlessly. The acknowledgement is the last step: it follows
// once handle has returned nil.
func (h *requestHandler) handle(ctx context.Context, d *jetstream.Delivery) error {
	if d.ID == "" {
		d.ID = fmt.Sprintf("stream-%d", d.Sequence) // without a message id a request is not idempotent
	}
	say := h.waitingNotice(d)
	again := d.Attempt > 1
	for failures, pause := 0, time.Duration(0); ; again = true {
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
		reply, err := h.try(ctx, d, failures, say)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			reply.Version = protocol.Version
			reply.Changed = reply.Changed || again && isFrom(reply, d)
			h.cfg.Probe(d.Verb + "-before-answer")
			h.conn.Answer(d, reply.WithoutValues())
			h.cfg.Probe(d.Verb + "-before-ack")
			if why, _ := h.gate.closed(); why != nil && protocol.EndsWork(d.Verb) {
				// Older requests wait while the gate is closed, so this decided request would stay in the queue for
				// long. A restarted server would deliver it again, and the sandbox's state may differ by then.
				h.conn.RemoveRequest(ctx, d)
			}
			return nil
		case protocol.AsError(err).Reason == protocol.ReasonNoLeader: // says nothing about the log
			say(protocol.AsError(err))
			pause = probePause
		case logUnavailable(err):
			h.gate.blame(ctx, key{Tenant: d.Tenant, ID: d.Sandbox}, protocol.AsError(err))
			say(protocol.AsError(err))
			pause = probePause
		default:
			failures++
			h.log.Warn("a request failed; trying it again", "request", d.ID, "verb", d.Verb, "sandbox", d.Sandbox,
				"failures", failures, "error", err)
			pause = min(firstRetry<<min(failures-1, 4), lastRetry)
		}
	}
}

// isFrom reports whether the request created what the reply describes. An earlier attempt may have appended it and lost
// the answer of NATS.
func isFrom(reply *protocol.Reply, d *jetstream.Delivery) bool {
	switch d.Verb {
	case protocol.VerbCreate:
		return reply.Sandbox != nil && reply.Sandbox.Request == d.ID
	case protocol.VerbExec:
		return reply.Exec != nil && reply.Exec.Request == d.ID
	}
	return false
}

// waitingNotice returns the function that tells a request's client why the request waits. The function sends a notice
// at once when the reason has changed, and otherwise repeats it from time to time, since a notice may be lost.
func (h *requestHandler) waitingNotice(d *jetstream.Delivery) func(why *protocol.Error) {
	reason, said := "", time.Time{}
	return func(why *protocol.Error) {
		if why.Reason != reason || time.Since(said) >= repeatAfter {
			reason, said = why.Reason, time.Now()
			h.conn.AnswerWaiting(d, why)
		}
	}
}

// After an attempt has failed for a reason other than the log, the request is tried again after firstRetry. Each
// further pause is twice as long, up to lastRetry.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// try decides a request and returns its answer, which may be a refusal. An error means that there is no answer yet.
func (h *requestHandler) try(
	ctx context.Context, d *jetstream.Delivery, failures int, say func(*protocol.Error),
) (*protocol.Reply, error) {
	if why := h.refusals.of(d); why != nil {
		return &protocol.Reply{Error: why}, nil
	}
	probe, err := h.gate.pass(ctx, d.Verb, say)
	if err != nil {
		return nil, err
	}
	reply, err := h.decideInTurn(ctx, d)
	if probe {
		h.gate.reportProbe(ctx, outcomeOf(reply, err))
	}
	switch {
	case err == nil:
		return reply, nil
	case logUnavailable(err):
		return nil, err
	case protocol.CodeOf(err) == protocol.Internal:
		if failures+1 < jetstream.MaxAttempts {
			return nil, err
		}
		if err := h.fileDead(ctx, d, protocol.AsError(err)); err != nil {
			return nil, err
		}
		err = deadLettered(err)
	case undecodable(err): // kept as a dead letter, because the client may be unable to receive the answer
		if err := h.conn.StoreDeadLetter(ctx, d, protocol.AsError(err)); err != nil {
			return nil, err
		}
	}
	stored, lookErr := h.conn.LastRequest(ctx)
	if lookErr != nil {
		return nil, lookErr // the client has no answer yet, so the request can be decided again
	}
	h.refusals.note(d, protocol.AsError(err), stored)
	return &protocol.Reply{Error: protocol.AsError(err)}, nil
}

func outcomeOf(reply *protocol.Reply, err error) outcome {
	switch {
	case err != nil && logUnavailable(err):
		return mustWait
	case err == nil && reply.Changed:
		return appended
	}
	return nothingAppended
}

// stalls handles a request that has not been decided within stallPause, most likely because its append does not
// succeed. It tells the client that the request waits. If the gate is open and the log is the cause, it closes the
// gate.
func (h *requestHandler) stalls(ctx context.Context, d *jetstream.Delivery) {
	why, _ := h.gate.closed()
	if why == nil {
		why = protocol.Errorf(protocol.Unavailable, "", "the event log has not answered for %s", stallPause)
		h.gate.blame(ctx, key{Tenant: d.Tenant, ID: d.Sandbox}, why)
	}
	h.conn.AnswerWaiting(d, why)
}

// decideInTurn limits how many requests are decided concurrently. Requests that end something have a limit of their
// own, so that they never wait for requests that begin something.
func (h *requestHandler) decideInTurn(ctx context.Context, d *jetstream.Delivery) (*protocol.Reply, error) {
	slots := h.deciding
	if protocol.EndsWork(d.Verb) {
		slots = h.ending
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-slots }()
	stalled := time.AfterFunc(stallPause, func() { h.stalls(ctx, d) })
	defer stalled.Stop()
	return h.decide(ctx, d)
}

func undecodable(err error) bool {
	if err == nil {
		return false
	}
	reason := protocol.AsError(err).Reason
	return reason == protocol.ReasonUndecodable || reason == protocol.ReasonUnsupportedVersion ||
		reason == protocol.ReasonForeignInbox
}

func deadLettered(err error) *protocol.Error {
	return protocol.Errorf(protocol.Internal, protocol.ReasonDeadLettered,
		"the request failed %d times and is now a dead letter: %v", jetstream.MaxAttempts, err)
}

// decide returns the answer to a request. A panic counts as a failed attempt, so that a request that triggers a defect
// finally becomes a dead letter.
func (h *requestHandler) decide(ctx context.Context, d *jetstream.Delivery) (reply *protocol.Reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.log.Error("deciding a request panicked", "request", d.ID, "panic", p, "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.Internal, "", "panic: %v", p)
		}
	}()
	for field, id := range map[string]string{"tenant": d.Tenant, "sandbox": d.Sandbox, protocol.HeaderRequest: d.ID} {
		if err := protocol.ValidateID(field, id); err != nil {
			return nil, err
		}
	}
	if d.User != "" {
		if err := protocol.ValidateUser("user", d.User); err != nil {
			return nil, err
		}
	}
	if err := d.CheckOrigin(); err != nil {
		return nil, err
	}
	r, err := readRequest(d)
	if err != nil {
		return nil, err
	}
	if d.Verb == protocol.VerbCreate {
		reply, err = h.create(ctx, d, key{Tenant: d.Tenant, ID: d.Sandbox}, r)
		return reply, protocol.WithPayloadField(d.Verb, err)
	}
	k, err := h.names.meant(ctx, d)
	if err != nil {
		return nil, protocol.WithPayloadField(d.Verb, withMissing(err, d.Sandbox, r.ExecID))
	}
	if d.Verb == protocol.VerbExec {
		reply, err = h.exec(ctx, d, k, r)
	} else {
		reply, err = h.control(ctx, d, k, r)
	}
	return reply, protocol.WithPayloadField(d.Verb, withMissing(err, d.Sandbox, r.ExecID))
}

// readRequest decodes a request and checks everything that needs neither a sandbox nor a host.
func readRequest(d *jetstream.Delivery) (*protocol.Request, error) {
	if len(d.Payload) > protocol.MaxSpecBytes {
		return nil, &protocol.Error{Code: protocol.InvalidArgument, Reason: protocol.ReasonTooLarge, Field: "payload",
			Message: fmt.Sprintf("has %d bytes, at most %d are allowed", len(d.Payload), protocol.MaxSpecBytes)}
	}
	r := &protocol.Request{}
	if err := protocol.DecodeStrict(d.ContentType, d.Payload, r); err != nil {
		return nil, err
	}
	if err := protocol.CheckVersion(r.Version); err != nil {
		return nil, err
	}
	return r, r.Validate(d.Verb)
}

// create accepts a sandbox: it takes the name, reserves the id, and appends the first event.
func (h *requestHandler) create(
	ctx context.Context, d *jetstream.Delivery, k key, r *protocol.Request,
) (reply *protocol.Reply, err error) {
	own := *r.Sandbox // without the tenant's defaults, which may change before a client repeats the request
	own.Resolve()
	own = *own.WithoutValues() // a client that repeats a request may seal its values again
	mine := reservation(d, named(&own, r.Name), h.conn.Now())
	full, refused := h.cfg.Defaults.Over(k.Tenant, *r.Sandbox)
	full, defaulted := spec.Resolve(full)
	if refused == nil {
		refused = h.refuseImpossible(ctx, k, &full, defaulted)
	}
	if refused == nil {
		if refused, err = h.refuseSecrets(ctx, k.Tenant, full.SecretFields()); err != nil {
			return nil, err
		}
	}
	if r.Ensure {
		if reply, err := h.ensured(ctx, k, r, &full); reply != nil || err != nil {
			return reply, err
		}
	}
	waits := h.passFor(protocol.QuotaClaim{Tenant: k.Tenant, Sandbox: k.ID})
	var events []protocol.Event
	defer func() { waits.leave(len(events) > 0, err) }()
	if refused == nil && waits.limited && !h.projection.read.knows(k) {
		if err := waits.take(ctx); err != nil {
			return nil, err
		}
		refused = waits.refusal()
	}
	before, err := h.names.reserve(ctx, d, k, r, mine, refused)
	if err != nil {
		return nil, err
	}
	h.cfg.Probe("create-before-append")
	if before != nil && !sameReservation(before, &mine) {
		return nil, protocol.Errorf(protocol.AlreadyExists, "", "sandbox id %s was used before", k.ID)
	}
	j, err := h.journalOfNew(ctx, k, before != nil)
	if err != nil {
		return nil, err
	}
	events, err = waits.do(ctx, func() ([]protocol.Event, error) {
		return j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			if !s.Exists() && refused != nil {
				return nil, refused
			}
			return waits.allow(actedBy(d)(decideAccept(s, d.ID, r.Name, &full, defaulted)))
		})
	})
	if err != nil {
		return nil, err
	}
	return sandboxReply(j, len(events) > 0), nil
}

// journalOfNew returns the journal of a new sandbox. The parameter reserved is true if the sandbox's id was already
// reserved.
func (h *requestHandler) journalOfNew(ctx context.Context, k key, reserved bool) (*jetstream.Journal, error) {
	if h.projection.read.isDeleted(k) && reserved {
		return h.projection.openDeleted(ctx, k)
	}
	j := h.projection.journal(k)
	if reserved {
		return j, j.Refresh(ctx)
	}
	j.Fresh() // a new id has no history
	return j, nil
}

// exec accepts an exec. Exec ids are not reserved: the sandbox's history says whether an exec id was used before.
func (h *requestHandler) exec(
	ctx context.Context, d *jetstream.Delivery, k key, r *protocol.Request,
) (*protocol.Reply, error) {
	j, err := h.projection.find(ctx, k, 0)
	if err != nil {
		return nil, err
	}
	r.Exec.Resolve()
	if h.projection.read.isDeleted(k) { // a deleted sandbox accepts no execs, but the request may repeat an earlier exec
		x, sequence, err := h.pastExec(ctx, j, k, r.ExecID, nil)
		if err != nil || x != nil && x.Request == d.ID && sameExec(&x.Spec, r.Exec) {
			return &protocol.Reply{Exec: x, Sequence: sequence}, err
		}
		if x != nil {
			return nil, errIDUsed(r.ExecID)
		}
	}
	noSecrets, err := h.refuseSecrets(ctx, k.Tenant, r.Exec.SecretFields())
	if err != nil {
		return nil, err
	}
	h.cfg.Probe("exec-before-append")
	lookups := execindex.Lookups{}
	runs := h.passFor(protocol.QuotaClaim{Tenant: k.Tenant, Sandbox: k.ID, Exec: r.ExecID})
	if runs.limited && acceptsNow(j, r.ExecID, h.cfg.MaxActiveExecs) {
		if err := runs.take(ctx); err != nil {
			return nil, err
		}
	}
	events, err := runs.do(ctx, func() ([]protocol.Event, error) {
		if runs.refused != nil { // the log may already have the exec from an earlier attempt
			if err := j.Refresh(ctx); err != nil {
				return nil, err
			}
		}
		return h.doOnce(ctx, j, d, k, r, lookups, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
			used, err := h.projection.execs.Used(k, r.ExecID, lookups)
			if err != nil {
				return nil, err
			}
			events, err := decideExec(s, d.ID, r.ExecID, r.Exec, used, h.cfg.MaxActiveExecs)
			if err == nil && len(events) > 0 {
				if err = noSecrets; err == nil {
					err = h.refuseWorker(s, r.Exec)
				}
			}
			return runs.allow(events, err)
		})
	})
	runs.leave(len(events) > 0, err)
	repeated := errors.Is(err, errExecUsed)
	if err != nil && !repeated {
		return nil, err
	}
	x, sequence, err := h.pastExec(ctx, j, k, r.ExecID, nil)
	if err == nil && repeated && (x == nil || x.Request != d.ID || !sameExec(&x.Spec, r.Exec)) {
		err = errIDUsed(r.ExecID)
	}
	return &protocol.Reply{Exec: x, Sequence: sequence, Changed: !repeated}, err
}

func errIDUsed(exec string) *protocol.Error {
	return protocol.Errorf(protocol.AlreadyExists, "", "exec id %s was used before in this sandbox", exec)
}

// acceptsNow reports whether a sandbox would accept a new exec, according to the state in memory. For such an exec the
// caller claims room in the tenant's quota before the decision. A decision without this room would have to run twice.
func acceptsNow(j *jetstream.Journal, exec string, limit int) (accepts bool) {
	j.View(func(s *protocol.State, _ uint64) { accepts = mayExec(s, limit) == nil && s.Execs[exec] == nil })
	return accepts
}

// actedBy adds a request's user to the events that it causes.
func actedBy(d *jetstream.Delivery) func([]protocol.Event, error) ([]protocol.Event, error) {
	return func(events []protocol.Event, err error) ([]protocol.Event, error) {
		for i := range events {
			events[i].Actor = d.User
		}
		return events, err
	}
}

// errOldExec says that the request id equals the id of an exec that ended long ago. Only the log tells for which
// request that exec was accepted.
var errOldExec = protocol.Errorf(protocol.AlreadyExists, protocol.ReasonRequestUsed,
	"the request id equals the id of an earlier exec")

// doOnce appends a decision. It refuses a request id that was used before for an exec with the same id, because the
// state does not remember such a request separately. A decision does no I/O. If memory cannot tell whether an exec id
// was used, doOnce reads the index into lookups and decides again.
func (h *requestHandler) doOnce(
	ctx context.Context, j *jetstream.Journal, d *jetstream.Delivery, k key, r *protocol.Request,
	lookups execindex.Lookups, decide jetstream.Decide,
) ([]protocol.Event, error) {
	others := false // true: the exec with the id d.ID was accepted for another request
	ids := []string{d.ID}
	if d.Verb == protocol.VerbExec && r.ExecID != d.ID {
		ids = append(ids, r.ExecID)
	}
	j.View(func(s *protocol.State, _ uint64) { h.projection.execs.EnsureCovers(k, s) })
	once := func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
		if why := h.refusals.of(d); why != nil {
			return nil, why
		}
		own := d.Verb == protocol.VerbExec && r.ExecID == d.ID
		if !own && !others && s.Execs[d.ID] == nil && s.UseOf(d.ID) == nil && s.Sandbox.TotalExecs > len(s.Execs) {
			if used, err := h.projection.execs.Used(k, d.ID, lookups); err != nil {
				return nil, err
			} else if used {
				return nil, errOldExec
			}
		}
		return actedBy(d)(decide(s, now))
	}
	do := func() ([]protocol.Event, error) {
		for {
			events, err := j.Do(ctx, once)
			if !errors.Is(err, execindex.ErrUnknown) {
				return events, err
			}
			if err := h.projection.execs.Lookup(ctx, k, lookups, ids...); err != nil {
				return nil, err
			}
		}
	}
	events, err := do()
	if !errors.Is(err, errOldExec) {
		return events, err
	}
	x, _, err := h.pastExec(ctx, j, k, d.ID, nil)
	if err != nil {
		return nil, err
	}
	if x != nil && x.Request == d.ID {
		return nil, errRequestUsed(d.ID, &protocol.Use{ID: d.ID, Exec: x.ID})
	}
	others = true
	return do()
}

// sameExec compares specs without stdin and without sealed values. Stdin is not kept once an exec has ended. A client
// that repeats a request may seal the values again.
func sameExec(a, b *protocol.ExecSpec) bool {
	x, y := *a.WithoutValues(), *b.WithoutValues()
	x.Stdin, y.Stdin = nil, nil
	return bytes.Equal(protocol.Encode(&x), protocol.Encode(&y))
}

// control decides a stop, resume, extend, delete, cancel or signal, with at most one append.
func (h *requestHandler) control(
	ctx context.Context, d *jetstream.Delivery, k key, r *protocol.Request,
) (*protocol.Reply, error) {
	j, err := h.projection.find(ctx, k, 0)
	if err != nil {
		return nil, err
	}
	decide := func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
		switch d.Verb {
		case protocol.VerbExtend:
			return decideExtend(s, d.ID, r.TTL, now)
		case protocol.VerbStop:
			return decideStop(s, d.ID, protocol.ReasonStopRequested)
		case protocol.VerbResume:
			events, err := decideResume(s, d.ID)
			if err == nil && changes(events) {
				err = h.refuseResume(s)
			}
			return events, err
		case protocol.VerbDelete:
			return decideDelete(s, d.ID, protocol.ReasonDeleteRequested)
		case protocol.VerbSignal:
			return decideSignal(s, d.ID, r, now)
		}
		return decideCancel(s, d.ID, r.ExecID)
	}
	lookups := execindex.Lookups{}
	events, err := h.doOnce(ctx, j, d, k, r, lookups, decide)
	if err != nil {
		// The refusal may come from an outdated state: read the log, and decide again.
		if refreshErr := j.Refresh(ctx); refreshErr != nil {
			return nil, refreshErr
		}
		if events, err = h.doOnce(ctx, j, d, k, r, lookups, decide); err != nil {
			return nil, err
		}
	}
	reply := sandboxReply(j, changes(events))
	if d.Verb == protocol.VerbCancel || d.Verb == protocol.VerbSignal {
		reply.Exec, _, err = h.pastExec(ctx, j, k, r.ExecID, nil)
	}
	return reply, err
}

func sandboxReply(j *jetstream.Journal, changed bool) *protocol.Reply {
	r := &protocol.Reply{Changed: changed}
	j.View(func(s *protocol.State, _ uint64) {
		handle := s.Sandbox
		r.Sandbox, r.Sequence = &handle, handle.Sequence
	})
	return r
}

func reservation(d *jetstream.Delivery, spec any, now time.Time) protocol.Reservation {
	return protocol.Reservation{Request: d.ID, Fingerprint: protocol.Fingerprint(spec), Time: now}
}

// fileDead stores a request that cannot be processed as a dead letter, and ends the id that the request may have
// reserved.
func (h *requestHandler) fileDead(ctx context.Context, d *jetstream.Delivery, why *protocol.Error) error {
	if err := h.conn.StoreDeadLetter(ctx, d, why); err != nil {
		return err
	}
	if d.Verb != protocol.VerbCreate {
		return nil
	}
	r, err := h.conn.SandboxReservation(ctx, d.Tenant, d.Sandbox)
	if protocol.CodeOf(err) == protocol.NotFound || err == nil && r.Request != d.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return h.abandon(ctx, key{Tenant: d.Tenant, ID: d.Sandbox}, d.ID, deadLettered(why))
}

// abandon ends an id that was reserved but never got a first event.
func (c *coordinator) abandon(ctx context.Context, k key, request string, why *protocol.Error) error {
	_, err := c.projection.journal(k).Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return decideAbandoned(s, request, why)
	})
	return err
}
