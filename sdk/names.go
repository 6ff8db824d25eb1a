package sdk

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// findMode says how often a handle's sandbox is looked for while no coordinator answers.
type findMode int

const (
	findOnce    findMode = iota
	findBounded          // for RequestTries times the request timeout, when the context has no deadline
	findForever          // until the context ends
)

// Sandbox makes a handle from an id or a name without asking whether there is such a sandbox. Its Info is empty until
// a call fills it. The first call on it finds the sandbox; from then on the handle is that one's, whatever becomes of
// the name.
func (c *Client) Sandbox(idOrName string) *Sandbox {
	return &Sandbox{client: c, id: idOrName, found: protocol.GeneratedID(idOrName), info: protocol.Sandbox{Tenant: c.tenant, ID: idOrName}}
}

// ID is the sandbox's id; of a handle that was made from a name or the beginning of an id, that text until a call has
// found the sandbox.
func (s *Sandbox) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// find returns the sandbox's id, after asking for it where only a name or the beginning of an id is known. A request
// goes to an id: its repeat would otherwise reach another sandbox, which has the name since.
func (s *Sandbox) find(ctx context.Context, mode findMode) (string, error) {
	s.mu.Lock()
	ref, found := s.id, s.found
	s.mu.Unlock()
	if found {
		return ref, protocol.ValidateID("sandbox", ref)
	}
	if _, bounded := ctx.Deadline(); bounded && mode == findBounded {
		mode = findForever
	}
	for giveUp := time.Now().Add(RequestTries * s.client.requestTimeout); ; {
		info, err := s.client.resolve(ctx, ref)
		if err == nil {
			s.learn(info)
			return info.ID, nil
		}
		if mode == findOnce || !isTransient(err) || isFinal(err) || mode == findBounded && time.Now().After(giveUp) {
			return "", err
		}
		if !pause(ctx, retryPause) {
			return "", ctxEnded(ctx.Err(), "find sandbox "+ref)
		}
	}
}

// resolve reads the sandbox that an id, a name, or, if the client was told so, the beginning of an id means.
func (c *Client) resolve(ctx context.Context, ref string) (*protocol.Sandbox, error) {
	if err := protocol.ValidateID("sandbox", ref); err != nil {
		return nil, err
	}
	endpoint := protocol.EndpointGet
	if c.prefixes && protocol.IDPrefix(ref) {
		endpoint = protocol.EndpointResolve
	}
	reply, err := c.Query(ctx, endpoint, protocol.Query{Sandbox: ref})
	if err != nil {
		return nil, err
	}
	return reply.Sandbox, nil
}

// idOf is the id that a text means. Where no coordinator says so it is taken for an id: histories can be read without one.
func (c *Client) idOf(ctx context.Context, ref string) (string, error) {
	if protocol.GeneratedID(ref) {
		return ref, nil
	}
	info, err := c.resolve(ctx, ref)
	switch code := protocol.CodeOf(err); {
	case err == nil:
		return info.ID, nil
	case code == protocol.NotFound || isTransient(err):
		return ref, nil
	}
	return "", err
}
