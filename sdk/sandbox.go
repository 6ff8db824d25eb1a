package sdk

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
)

// Sandbox is a handle for one sandbox. It is safe for concurrent use. A handle holds no resources in the fleet;
// dropping it does not affect the sandbox.
type Sandbox struct {
	client *Client
	known
}

// known is what a handle knows about its sandbox.
type known struct {
	mu    sync.Mutex
	id    string
	found bool // id holds an id; if false, id may hold a name or the beginning of an id
	info  SandboxInfo
	newer uint64 // newest event seen by calls on the handle or its execs; info may be older
}

func newSandbox(c *Client, info *SandboxInfo) *Sandbox {
	return &Sandbox{client: c, known: known{id: info.ID, found: true, info: *info}}
}

// Sandbox makes a handle from an id or a name without asking whether such a sandbox exists. Its Info is empty until a
// call on the handle learns the state of the sandbox. The first call finds the sandbox and binds the handle to it:
// later calls reach the same sandbox even if another sandbox takes the name.
func (c *Client) Sandbox(idOrName string) *Sandbox {
	return &Sandbox{client: c, known: known{
		id: idOrName, found: protocol.IsGeneratedID(idOrName), info: SandboxInfo{Tenant: c.tenant, ID: idOrName}}}
}

// ID returns the sandbox's id. If the handle was made from a name or from the beginning of an id, ID returns that text
// until the first call has found the sandbox.
func (s *Sandbox) ID() string {
	id, _ := s.ref()
	return id
}

// Info returns the state of the sandbox as the last call on this handle learned it. Info does not change by itself;
// [Sandbox.Refresh] reads the current state. Info().Sequence is the number of the last event that this state includes.
// WaitReady, WaitStopped and WaitDeleted on the handle miss no later event.
func (s *Sandbox) Info() SandboxInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// ref returns the text by which the handle names the sandbox, and whether the text is known to be an id.
func (k *known) ref() (text string, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.id, k.found
}

// learn stores the state from an answer, unless the handle knows a newer state.
func (k *known) learn(info *SandboxInfo) {
	if info == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.found {
		k.id, k.found = info.ID, true
	}
	if info.Sequence >= k.info.Sequence {
		k.info = *info
	}
}

// saw records the number of an event that a call has seen. Later reads must be at least as new.
func (k *known) saw(sequence uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newer = max(k.newer, sequence)
}

// newest returns the number of the newest event that calls on the handle have seen.
func (k *known) newest() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(k.newer, k.info.Sequence)
}

// Create creates a sandbox and waits until it is ready or, with WithWait(false), until the request is accepted. If the
// sandbox was accepted and then failed, Create returns both the handle and the error.
//
// If ctx ends first, the sandbox may exist, and its creation continues. Delete it, or repeat the call with the same
// [WithRequestID] to get a handle for it.
//
// Options: [WithID], [WithName], [WithRequestID], [WithWait], [WithYAML], [WithSensitiveEnv]. Errors: invalid_argument
// naming the field; failed_precondition with reason secret_missing if the tenant lacks a secret that the spec names;
// already_exists naming the field id if the id was ever used, or with reason name_taken if a sandbox that is pending,
// ready or stopped has the name; the sandbox's own error if it failed.
func (c *Client) Create(ctx context.Context, spec SandboxSpec, opts ...CreateOption) (*Sandbox, error) {
	o := settingsOf(opts, CreateOption.forCreate)
	if err := o.fillIDs(); err != nil {
		return nil, err
	}
	var err error
	if o.yaml != nil {
		if spec, err = specFromYAML(ctx, c, o, spec); err != nil {
			return nil, err
		}
	}
	if spec.SensitiveEnv, err = o.sealEnv(ctx, c, spec.SensitiveEnv); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s := newSandbox(c, &SandboxInfo{Tenant: c.tenant, ID: *o.id})
	payload := protocol.Request{Sandbox: &spec, Name: given(o.name)}
	err = change{sandbox: s, verb: protocol.VerbCreate, settings: o, payload: payload, until: untilReady}.do(ctx)
	if s.Info().Sequence == 0 {
		return nil, err
	}
	return s, err
}

// Get reads a sandbox by its id or name, once. A name refers to the sandbox that has this name and is pending, ready or
// stopped. If there is no such sandbox, the name refers to the last sandbox that had it, as long as that sandbox's
// history is kept. Errors: not_found; unavailable if no coordinator is running.
func (c *Client) Get(ctx context.Context, idOrName string) (*Sandbox, error) {
	s := c.Sandbox(idOrName)
	return s, s.Refresh(ctx)
}

// Refresh reads the sandbox, once, and updates Info. It never replaces Info with an older state. Errors: not_found;
// unavailable if no coordinator is running.
func (s *Sandbox) Refresh(ctx context.Context) error {
	id, found := s.ref()
	if !found {
		_, err := s.find(ctx, findOnce)
		return err
	}
	if err := protocol.ValidateID("sandbox", id); err != nil {
		return err
	}
	reply, err := s.client.query(ctx, protocol.EndpointGet, protocol.Query{Sandbox: id, MinSequence: s.newest()})
	if err == nil {
		s.learn(reply.Sandbox)
	}
	return err
}

// Explain returns what the sandbox waits for, and why each host does or does not accept the sandbox. Errors: not_found;
// unavailable if no coordinator is running.
func (s *Sandbox) Explain(ctx context.Context) (*Explanation, error) {
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.query(ctx, protocol.EndpointExplain, protocol.Query{Sandbox: id})
	if err != nil {
		return nil, err
	}
	return reply.Explain, nil
}

// Stop ends the running execs and stops the sandbox, which can be resumed. Stop waits until the sandbox has stopped or,
// with WithWait(false), until the request is accepted. Stopping a stopped sandbox succeeds.
//
// If ctx ends first, the request may still be carried out; repeating the call is safe.
//
// Options: [WithRequestID], [WithWait]. Errors: not_found; failed_precondition if the sandbox cannot be stopped; the
// sandbox's own error if it failed.
func (s *Sandbox) Stop(ctx context.Context, opts ...ChangeOption) error {
	return control(ctx, s, protocol.VerbStop, opts, untilStopped)
}

// Resume starts a stopped sandbox again and waits until it is ready. Resuming a ready sandbox succeeds. Options, errors
// and the effect of ctx are the same as for [Sandbox.Stop].
func (s *Sandbox) Resume(ctx context.Context, opts ...ChangeOption) error {
	return control(ctx, s, protocol.VerbResume, opts, untilReady)
}

// Delete ends the running execs, removes everything of the sandbox except its history, and waits until all is removed.
// Deleting a deleted sandbox succeeds. Options, errors and the effect of ctx are the same as for [Sandbox.Stop].
func (s *Sandbox) Delete(ctx context.Context, opts ...ChangeOption) error {
	return control(ctx, s, protocol.VerbDelete, opts, untilDeleted)
}

func control(ctx context.Context, s *Sandbox, verb string, opts []ChangeOption, until condition) error {
	o := settingsOf(opts, ChangeOption.forChange)
	if err := o.fillIDs(); err != nil {
		return err
	}
	return change{sandbox: s, verb: verb, settings: o, until: until}.do(ctx)
}

// Extend sets the sandbox's remaining lifetime: the sandbox is deleted when ttl, counted from now, has passed. The new
// time may be sooner or later than the old one. See [protocol.SandboxSpec.TTL]. Extend returns once the request is
// accepted. If ctx ends first, the request may still be carried out; repeating the call is safe.
//
// Option: [WithRequestID]. Errors: not_found; invalid_argument if ttl is not positive; failed_precondition if the
// sandbox has failed or is deleted.
func (s *Sandbox) Extend(ctx context.Context, ttl time.Duration, opts ...RequestOption) error {
	o := settingsOf(opts, RequestOption.forRequest)
	if err := o.fillIDs(); err != nil {
		return err
	}
	if ttl <= 0 {
		return protocol.Invalid("ttl", "must be positive, got %s", ttl)
	}
	o.acceptedOnly = true
	payload := protocol.Request{TTL: Duration(ttl)}
	return change{sandbox: s, verb: protocol.VerbExtend, settings: o, payload: payload}.do(ctx)
}

// parallelDeletes is how many sandboxes DeleteByLabels deletes at once.
const parallelDeletes = 16

// DeleteByLabels deletes every sandbox that has all of the labels, and returns the sandboxes that it deleted. If one
// delete fails, the others continue, and DeleteByLabels returns the first error. When ctx ends, accepted deletes
// continue.
//
// Option: [WithWait]. Errors: invalid_argument if labels is empty; the errors of [Client.List] and [Sandbox.Delete].
func (c *Client) DeleteByLabels(ctx context.Context, labels map[string]string, opts ...DeleteByLabelsOption) (
	[]*Sandbox, error) {
	if len(labels) == 0 {
		return nil, protocol.Invalid("labels", "must not be empty: that would delete everything")
	}
	o := settingsOf(opts, DeleteByLabelsOption.forDeleteByLabels)
	var mu sync.Mutex
	var deleted []*Sandbox
	var group errgroup.Group
	group.SetLimit(parallelDeletes)
	for s, err := range c.List(ctx, WithLabels(labels)) {
		if err != nil {
			group.Go(func() error { return err })
			break
		}
		group.Go(func() error {
			err := s.Delete(ctx, WithWait(!o.acceptedOnly))
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				deleted = append(deleted, s)
			}
			return err
		})
	}
	err := group.Wait()
	return deleted, err
}
