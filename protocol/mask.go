package protocol

import "maps"

// Reads show [Masked] in place of each sealed value. The methods below return their receiver if it has no sealed value,
// and otherwise a copy. They change nothing.

// WithoutValues returns the spec with [Masked] in place of sealed values.
func (s *SandboxSpec) WithoutValues() *SandboxSpec {
	if !s.hasSensitive() {
		return s
	}
	c := *s
	c.SensitiveEnv = maskAll(s.SensitiveEnv)
	c.RequiredServices, c.OptionalServices = s.RequiredServices.withoutValues(), s.OptionalServices.withoutValues()
	return &c
}

func (s *SandboxSpec) hasSensitive() bool {
	if s == nil {
		return false
	}
	has := len(s.SensitiveEnv) > 0
	for _, services := range []Services{s.RequiredServices, s.OptionalServices} {
		for _, v := range services {
			has = has || len(v.SensitiveEnv) > 0
		}
	}
	return has
}

func (s Services) withoutValues() Services {
	all := maps.Clone(s)
	for name, v := range all {
		v.SensitiveEnv = maskAll(v.SensitiveEnv)
		all[name] = v
	}
	return all
}

func maskAll(values map[string]Sealed) map[string]Sealed {
	masked := maps.Clone(values)
	for name := range masked {
		masked[name] = Sealed(Masked)
	}
	return masked
}

// WithoutValues returns the spec with [Masked] in place of sealed values.
func (s *ExecSpec) WithoutValues() *ExecSpec {
	if s == nil || len(s.SensitiveEnv) == 0 {
		return s
	}
	c := *s
	c.SensitiveEnv = maskAll(s.SensitiveEnv)
	return &c
}

// WithoutValues returns the sandbox with [Masked] in place of sealed values.
func (b *Sandbox) WithoutValues() *Sandbox {
	if b == nil || !b.Spec.hasSensitive() && !b.Accepted.hasSensitive() {
		return b
	}
	c := *b
	c.Spec, c.Accepted = *b.Spec.WithoutValues(), b.Accepted.WithoutValues()
	return &c
}

// WithoutValues returns the exec with [Masked] in place of sealed values.
func (x *Exec) WithoutValues() *Exec {
	if x == nil || len(x.Spec.SensitiveEnv) == 0 {
		return x
	}
	c := *x
	c.Spec = *x.Spec.WithoutValues()
	return &c
}

// WithoutValues returns the event with [Masked] in place of sealed values.
func (e Event) WithoutValues() Event {
	if e.Details != nil && e.Details.Spec.hasSensitive() {
		phase := *e.Details
		phase.Spec = e.Details.Spec.WithoutValues()
		e.Details = &phase
	}
	if e.Exec != nil && e.Exec.Spec != nil && len(e.Exec.Spec.SensitiveEnv) > 0 {
		exec := *e.Exec
		exec.Spec = e.Exec.Spec.WithoutValues()
		e.Exec = &exec
	}
	return e
}

// WithoutValues returns the reply with [Masked] in place of sealed values. Signed messages in a reply stay as they are:
// their bytes prove their writer.
func (r *Reply) WithoutValues() *Reply {
	c := *r
	c.Sandbox, c.Exec = r.Sandbox.WithoutValues(), r.Exec.WithoutValues()
	c.Sandboxes, c.Execs = eachWithoutValues(r.Sandboxes), eachWithoutValues(r.Execs)
	if r.Explain != nil {
		explain := *r.Explain
		explain.Sandbox = r.Explain.Sandbox.WithoutValues()
		c.Explain = &explain
	}
	if r.History != nil {
		page := *r.History
		page.Events = make([]Event, len(r.History.Events))
		for i, e := range r.History.Events {
			page.Events[i] = e.WithoutValues()
		}
		c.History = &page
	}
	return &c
}

func eachWithoutValues[T interface{ WithoutValues() T }](all []T) []T {
	if all == nil {
		return nil
	}
	masked := make([]T, len(all))
	for i, v := range all {
		masked[i] = v.WithoutValues()
	}
	return masked
}
