package sdk

import (
	"context"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
)

// Sandbox is a handle: what a sandbox was when it was last asked for, and the calls on it. It may
// be shared by goroutines.
type Sandbox struct {
	client *Client

	mu    sync.Mutex
	id    string
	found bool // id is one; else it may be a name, or the beginning of an id
	info  protocol.Sandbox
	seen  uint64 // newest event that a call on the handle, or on an exec of it, was told of
}

func (c *Client) handle(info *protocol.Sandbox) *Sandbox {
	return &Sandbox{client: c, id: info.ID, found: true, info: *info}
}

// Info is the sandbox as the handle last saw it. Info().Sequence is the number of the event that
// it reaches to: waits on the handle see everything after that.
func (s *Sandbox) Info() protocol.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// learn takes over what an answer says, unless the handle knows newer.
func (s *Sandbox) learn(info *protocol.Sandbox) {
	if info == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.found {
		s.id, s.found = info.ID, true
	}
	if info.Sequence >= s.info.Sequence {
		s.info = *info
	}
}

// saw notes that a call was told of an event: what is read next is not older.
func (s *Sandbox) saw(sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = max(s.seen, sequence)
}

// newest is the number of the newest event that the handle was told of.
func (s *Sandbox) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.seen, s.info.Sequence)
}

// Create makes a sandbox and waits until it is ready, or, with WithWait(false), only until it is
// accepted. The handle is returned beside an error where the sandbox was accepted and failed.
//
// Options: [WithID], [WithName], [WithRequestID], [WithWait], [WithYAML]. Errors: invalid_argument naming the field;
// already_exists for an id that was ever used, and, with reason name_taken, for a name that a living sandbox has; the sandbox's own error where it failed. When ctx
// ends the sandbox remains: delete it, or ask again with the same request id.
func (c *Client) Create(ctx context.Context, spec protocol.SandboxSpec, opts ...Option) (*Sandbox, error) {
	call, err := newCall("Create", opts, "WithID", "WithName", "WithRequestID", "WithWait", "WithYAML")
	if err != nil {
		return nil, err
	}
	if call.yaml != nil {
		if spec, err = c.fromYAML(ctx, call, spec); err != nil {
			return nil, err
		}
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s := c.handle(&protocol.Sandbox{Tenant: c.tenant, ID: call.id})
	err = s.change(ctx, protocol.VerbCreate, call, protocol.Request{Sandbox: &spec, Name: call.name}, untilReady)
	if s.Info().Sequence == 0 {
		return nil, err
	}
	return s, err
}

// Get reads a sandbox by its id or name. A name means the living sandbox that has it, or, while there is none, the
// last one that had it and whose history is kept. Errors: not_found.
func (c *Client) Get(ctx context.Context, idOrName string) (*Sandbox, error) {
	s := c.Sandbox(idOrName)
	return s, s.Refresh(ctx)
}

// Refresh reads the sandbox again; the handle is never older than it was.
func (s *Sandbox) Refresh(ctx context.Context) error {
	s.mu.Lock()
	id, found := s.id, s.found
	s.mu.Unlock()
	if !found {
		_, err := s.find(ctx, findOnce)
		return err
	}
	if err := protocol.ValidateID("sandbox", id); err != nil {
		return err
	}
	reply, err := s.client.Query(ctx, protocol.EndpointGet, protocol.Query{Sandbox: id, MinSequence: s.newest()})
	if err == nil {
		s.learn(reply.Sandbox)
	}
	return err
}

// Explain says what the sandbox waits for, and why each host does or does not take it.
func (s *Sandbox) Explain(ctx context.Context) (*protocol.Explanation, error) {
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	reply, err := s.client.Query(ctx, protocol.EndpointExplain, protocol.Query{Sandbox: id})
	if err != nil {
		return nil, err
	}
	return reply.Explain, nil
}

// ListOptions selects sandboxes.
type ListOptions struct {
	Labels map[string]string       // each must be on the sandbox with this value
	Name   string                  // which the sandbox has, or, of one that is over, had
	States []protocol.SandboxState // any of them; none: every state but deleted
	Limit  int                     // sandboxes per page, 1 to 1000; 0: 100
	Page   string                  // the Next of the page before
}

// Page is one page of a list.
type Page struct {
	Sandboxes []*Sandbox
	Next      string // ask for it with ListOptions.Page; empty on the last page
}

// List reads one page of the sandboxes. [Client.All] reads all pages.
func (c *Client) List(ctx context.Context, o ListOptions) (*Page, error) {
	states := make([]string, len(o.States))
	for i, s := range o.States {
		states[i] = string(s)
	}
	reply, err := c.Query(ctx, protocol.EndpointList, protocol.Query{Labels: o.Labels, Name: o.Name, States: states, Limit: o.Limit, Page: o.Page})
	if err != nil {
		return nil, err
	}
	page := &Page{Next: reply.Next, Sandboxes: make([]*Sandbox, len(reply.Sandboxes))}
	for i, info := range reply.Sandboxes {
		page.Sandboxes[i] = c.handle(info)
	}
	return page, nil
}

// All reads the sandboxes page by page from o.Page on. It ends with the first error.
func (c *Client) All(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		for {
			page, err := c.List(ctx, o)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, s := range page.Sandboxes {
				if !yield(s, nil) {
					return
				}
			}
			if o.Page = page.Next; o.Page == "" {
				return
			}
		}
	}
}

// Stop ends the running execs and stops the sandbox; it can be resumed. It waits until the sandbox
// is stopped, or, with WithWait(false), only until that is accepted. To stop a stopped one is no
// error. Options: [WithRequestID], [WithWait]. Errors: not_found; failed_precondition where it
// cannot be stopped; the sandbox's own error where it failed.
func (s *Sandbox) Stop(ctx context.Context, opts ...Option) error {
	return s.control(ctx, protocol.VerbStop, opts, untilStopped)
}

// Resume starts a stopped sandbox again, and waits until it is ready. See [Sandbox.Stop].
func (s *Sandbox) Resume(ctx context.Context, opts ...Option) error {
	return s.control(ctx, protocol.VerbResume, opts, untilReady)
}

// Extend sets that the sandbox is deleted so long from now, earlier or later than before; see
// [protocol.SandboxSpec.TTL]. It returns when that is accepted. Option: [WithRequestID]. Errors:
// not_found; invalid_argument for a ttl that is not positive; failed_precondition where the sandbox
// failed, or is deleted.
func (s *Sandbox) Extend(ctx context.Context, ttl time.Duration, opts ...Option) error {
	call, err := newCall("Extend", opts, "WithRequestID")
	if err != nil {
		return err
	}
	if ttl <= 0 {
		return protocol.Invalid("ttl", "must be positive, got %s", ttl)
	}
	call.accepted = true
	return s.change(ctx, protocol.VerbExtend, call, protocol.Request{TTL: protocol.Duration(ttl)}, nil)
}

// Delete ends the running execs and removes everything of the sandbox but its history, and waits
// until that is done. To delete a deleted one is no error. See [Sandbox.Stop].
func (s *Sandbox) Delete(ctx context.Context, opts ...Option) error {
	return s.control(ctx, protocol.VerbDelete, opts, untilDeleted)
}

func (s *Sandbox) control(ctx context.Context, verb string, opts []Option, until condition) error {
	call, err := newCall(verb, opts, "WithRequestID", "WithWait")
	if err != nil {
		return err
	}
	return s.change(ctx, verb, call, protocol.Request{}, until)
}

// deletesAtOnce is how many deletes DeleteByLabels has in hand.
const deletesAtOnce = 16

// DeleteByLabels deletes every sandbox that has all of the labels, of which there must be at least
// one, and returns those whose delete succeeded. Several fail independently; the error is the
// first one. Option: [WithWait].
func (c *Client) DeleteByLabels(ctx context.Context, labels map[string]string, opts ...Option) ([]*Sandbox, error) {
	if len(labels) == 0 {
		return nil, protocol.Invalid("labels", "must not be empty: that would delete everything")
	}
	if _, err := newCall("DeleteByLabels", opts, "WithWait"); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var deleted []*Sandbox
	var group errgroup.Group
	group.SetLimit(deletesAtOnce)
	for s, err := range c.All(ctx, ListOptions{Labels: labels}) {
		if err != nil {
			group.Go(func() error { return err })
			break
		}
		group.Go(func() error {
			err := s.Delete(ctx, opts...)
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
