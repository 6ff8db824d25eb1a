package sdk

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// findMode says how long find retries while no coordinator answers.
type findMode int

const (
	findOnce    findMode = iota
	findBounded          // retry until the context ends or, if it has no deadline, for giveUpAfter
	findForever          // retry until the context ends
)

// find returns the sandbox's id. If the handle knows only a name or the beginning of an id, find asks a coordinator.
// Requests must name the sandbox by its id: another sandbox may take the name before a request is repeated.
func (s *Sandbox) find(ctx context.Context, mode findMode) (string, error) {
	ref, found := s.ref()
	if found {
		return ref, protocol.ValidateID("sandbox", ref)
	}
	if _, bounded := ctx.Deadline(); bounded && mode == findBounded {
		mode = findForever
	}
	for giveUp := time.Now().Add(s.client.giveUpAfter()); ; {
		info, err := s.client.resolve(ctx, ref)
		if err == nil {
			s.learn(info)
			return info.ID, nil
		}
		if mode == findOnce || !isTransient(err) || isFinal(err) || mode == findBounded && time.Now().After(giveUp) {
			return "", err
		}
		if !backoff.Sleep(ctx, retryPause) {
			return "", ctxEnded(ctx.Err(), "find sandbox "+ref)
		}
	}
}

// resolve reads the sandbox that ref refers to. ref is an id, a name or, with Options.IDPrefixes, the beginning of an
// id.
func (c *Client) resolve(ctx context.Context, ref string) (*SandboxInfo, error) {
	if err := protocol.ValidateID("sandbox", ref); err != nil {
		return nil, err
	}
	endpoint := protocol.EndpointGet
	if c.prefixes && protocol.IsIDPrefix(ref) {
		endpoint = protocol.EndpointResolve
	}
	reply, err := c.query(ctx, endpoint, protocol.Query{Sandbox: ref})
	if err != nil {
		return nil, err
	}
	return reply.Sandbox, nil
}

// historyID returns the id under which the sandbox's history is stored. If no coordinator answers or knows the sandbox,
// historyID assumes that the handle was made from an id. The read of the history then returns the error.
func (s *Sandbox) historyID(ctx context.Context) (string, error) {
	ref, found := s.ref()
	if found {
		return ref, protocol.ValidateID("sandbox", ref)
	}
	id, err := s.find(ctx, findOnce)
	if protocol.CodeOf(err) == protocol.NotFound || isTransient(err) {
		return ref, nil
	}
	return id, err
}
