package coordinator

import (
	"context"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// ensured answers a create that ensures a name, if a living sandbox already has the name. It returns nil if the create
// must make the sandbox. full is the spec of the create over the tenant's defaults, resolved.
//
// Two specs are equal if both requests asked for the same. This comparison does not depend on defaults, which an
// operator may have changed in between. Two specs are also equal if they mean the same with the defaults of the tenant,
// for example because one of them names a default that the other one omits. Defaults of workers do not count, and
// neither do the values of sensitive variables: each request seals them again.
func (h *requestHandler) ensured(
	ctx context.Context, k key, r *protocol.Request, full *protocol.SandboxSpec,
) (*protocol.Reply, error) {
	hold, state, err := h.names.holder(ctx, k.Tenant, r.Name)
	if err != nil || hold == nil || hold.Sandbox == k.ID {
		return nil, err
	}
	j, err := h.projection.find(ctx, key{Tenant: k.Tenant, ID: hold.Sandbox}, 0)
	if err != nil {
		return nil, err
	}
	reply := sandboxReply(j, false)
	if !reply.Sandbox.State.ReservesName() { // it ended after holder had read its state
		return nil, nil
	}
	if hold.Fingerprint == protocol.Fingerprint(r.Sandbox.WithoutValues()) {
		return reply, nil
	}
	has, _ := spec.Resolve(*reply.Sandbox.AcceptedSpec()) // an earlier version may not have known all defaults
	differs := spec.Difference(*has.WithoutValues(), *full.WithoutValues())
	if len(differs) == 0 {
		return reply, nil
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSpecDiffers,
		"%s is the name of sandbox %s, which is %s and has a different %s: ask for the same spec, "+
			"choose another name, or delete that sandbox", r.Name, hold.Sandbox, state, strings.Join(differs, ", "))
	e.Field = "spec"
	if len(differs) == 1 {
		e.Field += "." + differs[0]
	}
	return nil, e
}
