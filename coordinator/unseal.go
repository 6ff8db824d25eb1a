package coordinator

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// unseal answers a worker's question for the value behind a field of a spec. The worker gets the value only while the
// log says that its host runs the sandbox. The answer is sealed to the key that the worker's question names.
func (c *coordinator) unseal(ctx context.Context, worker protocol.Writer, q *protocol.UnsealQuery) ([]byte, error) {
	for field, id := range map[string]string{"tenant": q.Tenant, "sandbox": q.Sandbox} {
		if err := protocol.ValidateID(field, id); err != nil {
			return nil, err
		}
	}
	if q.Exec != "" {
		if err := protocol.ValidateID("exec", q.Exec); err != nil {
			return nil, err
		}
	}
	if err := seal.ValidateKey(q.Key); err != nil {
		return nil, err
	}
	if why := c.secretsProblem(); why != nil {
		if why.Reason == protocol.ReasonNoFleetKey { // another coordinator may have the key
			why.Code = protocol.Unavailable
		}
		return nil, why
	}
	k := key{Tenant: q.Tenant, ID: q.Sandbox}
	j, err := c.projection.find(ctx, k, 0)
	if err != nil {
		return nil, err
	}
	if err := c.projection.refreshes.refresh(ctx, k, j, c.cfg.Timing.Fresh); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "",
			"could not read the sandbox's latest events, which name its host: %v", err)
	}
	f, err := askedField(j, worker, q)
	if err != nil {
		return nil, err
	}
	value, err := c.valueOf(ctx, q.Tenant, f)
	if err != nil {
		return nil, inField(q.Field, err)
	}
	defer clear(value.Value)
	c.log.Info("a worker gets a value", "worker", worker.Name, "host", worker.Host, "tenant", q.Tenant,
		"sandbox", q.Sandbox, "generation", q.Generation, "exec", q.Exec, "field", q.Field, "secret", value.Name,
		"version", value.Version)
	inside := protocol.Encode(value)
	defer clear(inside)
	return seal.To(q.Key, seal.Answer(q), inside)
}

// askedField returns the field of the stored spec that a worker asks for, if the worker may have its value.
func askedField(j *jetstream.Journal, worker protocol.Writer, q *protocol.UnsealQuery) (
	f protocol.SecretField, err error) {
	var fields []protocol.SecretField
	j.View(func(s *protocol.State, _ uint64) {
		if err = mayUnseal(s, worker, q); err != nil {
			return
		}
		if q.Exec != "" {
			fields = s.Execs[q.Exec].Spec.SecretFields()
		} else {
			fields = s.Sandbox.Spec.SecretFields()
		}
	})
	if err != nil {
		return f, err
	}
	i := slices.IndexFunc(fields, func(f protocol.SecretField) bool { return f.Field == q.Field })
	if i < 0 {
		return f, protocol.Errorf(protocol.NotFound, "", "the spec has no field %.100q that stands for a secret value",
			q.Field)
	}
	return fields[i], nil
}

// mayUnseal returns why a worker may not have the values of a sandbox or an exec, or nil.
func mayUnseal(s *protocol.State, worker protocol.Writer, q *protocol.UnsealQuery) error {
	b := &s.Sandbox
	switch {
	case !s.Exists():
		return errNoSandbox()
	case b.HostID == "" || b.HostID != worker.Host || b.Generation != q.Generation:
		return protocol.Errorf(protocol.PermissionDenied, "",
			"generation %d of sandbox %s is not assigned to host %s", q.Generation, q.Sandbox, worker.Host)
	case b.State != protocol.StatePending && b.State != protocol.StateReady:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInvalidState,
			"sandbox %s is %s: only a pending or ready sandbox gets secret values", q.Sandbox, b.State)
	case q.Exec == "":
		return nil
	}
	x := s.Execs[q.Exec]
	switch {
	case x == nil:
		return errNoExec()
	case x.State.Terminal():
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
			"exec %s has ended: only an active exec gets secret values", q.Exec)
	}
	return nil
}

// valueOf opens the value behind a field. The caller clears it.
func (c *coordinator) valueOf(
	ctx context.Context, tenant string, f protocol.SecretField,
) (*protocol.UnsealedValue, error) {
	if f.Use == nil {
		value, err := c.openVariable(tenant, f)
		return &protocol.UnsealedValue{Value: value}, asMissingKey(err)
	}
	if err := c.secrets.current(ctx, c.conn); err != nil {
		return nil, err
	}
	v, missing := c.secretVersion(tenant, f.Use)
	if missing != nil {
		return nil, missing
	}
	sealed, err := c.conn.SealedSecret(ctx, tenant, f.Use.Name, v.revision)
	if protocol.CodeOf(err) == protocol.NotFound { // it was removed or replaced since: the worker asks again
		return nil, protocol.Errorf(protocol.Unavailable, "", "secret %s is being changed: ask again", f.Use.Name)
	}
	if err != nil {
		return nil, err
	}
	value, err := c.cfg.SecretsKeys.Open(sealed, seal.Secret(tenant, f.Use.Name))
	if err != nil {
		return nil, asMissingKey(err)
	}
	if f.Use.Env != "" {
		if err := checkVariable(value); err != nil {
			clear(value)
			return nil, err
		}
	}
	return &protocol.UnsealedValue{Name: f.Use.Name, Version: v.Version, Value: value}, nil
}

// asMissingKey turns the error of a missing fleet key into unavailable, because another coordinator may have the key.
func asMissingKey(err error) error {
	if e := protocol.AsError(err); e != nil && e.Reason == protocol.ReasonNoFleetKey {
		return protocol.Errorf(protocol.Unavailable, e.Reason, "the value %s: add the key to coordinator.secrets_key",
			e.Message)
	}
	return err
}
