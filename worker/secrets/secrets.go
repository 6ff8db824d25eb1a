package secrets

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Ask gets the value that a question asks for. It sets the fields of the question that name the worker.
type Ask func(ctx context.Context, q protocol.UnsealQuery) (*protocol.UnsealedValue, error)

// Asker asks for values. Only a few commands of one tenant ask at the same time. So many commands of a tenant do not
// delay those of other tenants, and each command gets all its values in time.
type Asker struct {
	ask Ask

	mu      sync.Mutex
	tenants map[string]*line
}

// line has the commands of a tenant that ask or wait.
type line struct {
	commands int
	turns    chan struct{} // one entry for each command that asks
}

// NewAsker returns an Asker that calls ask.
func NewAsker(ask Ask) *Asker { return &Asker{ask: ask, tenants: map[string]*line{}} }

// asking is how many commands of one tenant may ask at the same time.
const asking = 4

// turn waits until a command of a tenant may ask. Call done afterwards. Error: unavailable.
func (a *Asker) turn(ctx context.Context, tenant string) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a.mu.Lock()
	l := a.tenants[tenant]
	if l == nil {
		l = &line{turns: make(chan struct{}, asking)}
		a.tenants[tenant] = l
	}
	l.commands++
	a.mu.Unlock()
	leave := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if l.commands--; l.commands == 0 {
			delete(a.tenants, tenant)
		}
	}
	select {
	case l.turns <- struct{}{}:
		return func() { <-l.turns; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, protocol.Errorf(protocol.Unavailable, "",
			"too many other commands of the tenant wait for secret values: try again later")
	}
}

// Named are the secrets and sensitive variables that a spec, a service or an exec names.
type Named struct {
	uses      []protocol.SecretUse
	sensitive []string // names of variables
	field     string   // path of the service in the sandbox's spec, with a dot; "": the sandbox's or the exec's own spec
}

// OfSandbox returns the secrets of a sandbox's primary container.
func OfSandbox(s *protocol.SandboxSpec) Named {
	return Named{uses: s.Secrets, sensitive: slices.Sorted(maps.Keys(s.SensitiveEnv))}
}

// OfService returns the secrets of a service's container.
func OfService(s *protocol.SandboxSpec, name string) Named {
	service, _ := s.Service(name) // without the service, nothing is named
	return Named{uses: service.Secrets, sensitive: slices.Sorted(maps.Keys(service.SensitiveEnv)),
		field: strings.TrimPrefix(s.ServiceField(name), "spec.") + "."}
}

// OfExec returns the secrets of an exec.
func OfExec(x *protocol.ExecSpec) Named {
	return Named{uses: x.Secrets, sensitive: slices.Sorted(maps.Keys(x.SensitiveEnv))}
}

// Files reports whether any secret becomes a file.
func (n Named) Files() bool {
	return slices.ContainsFunc(n.uses, func(u protocol.SecretUse) bool { return u.Env == "" })
}

// atOnce limits how many values one call asks for at the same time.
const atOnce = 8

// leastMasked is the length, in bytes, of the shortest value that can be masked. Shorter values occur by chance.
const leastMasked = 4

// within limits how long one call may wait for its turn, and then for its values, so that its caller can react to news
// of its sandbox. The caller may try again.
const within = 5 * time.Second

// Getter returns a function that asks for all values, or nil if there are no secrets. q names the sandbox, its
// generation and the exec. Errors of the function name the field and never contain a value.
func (n Named) Getter(a *Asker, q protocol.UnsealQuery) func(ctx context.Context) ([]control.Secret, error) {
	if len(n.uses)+len(n.sensitive) == 0 {
		return nil
	}
	return func(ctx context.Context) ([]control.Secret, error) {
		done, err := a.turn(ctx, q.Tenant)
		if err != nil {
			return nil, err
		}
		defer done()
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return n.values(ctx, a.ask, q)
	}
}

func (n Named) values(ctx context.Context, ask Ask, q protocol.UnsealQuery) ([]control.Secret, error) {
	var list []control.Secret
	var fields []string
	for i, u := range n.uses {
		one := control.Secret{Env: u.Env, File: u.File, Mask: u.Mask}
		if u.Env == "" {
			one.File = cmp.Or(u.File, u.Name)
		}
		list, fields = append(list, one), append(fields, fmt.Sprintf("%ssecrets[%d]", n.field, i))
	}
	for _, name := range n.sensitive {
		list, fields = append(list, control.Secret{Env: name}), append(fields, n.field+"sensitive_env."+name)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range list {
		group.Go(func() error {
			q := q
			q.Field = fields[i]
			got, err := ask(ctx, q)
			if err == nil {
				list[i].Value = control.NewValue(got.Value)
				err = check(&list[i])
			}
			return inField(err, "spec."+fields[i])
		})
	}
	if err := group.Wait(); err != nil {
		control.Wipe(list)
		return nil, err
	}
	masked := 0
	for i := range list {
		if !list[i].Mask {
			continue
		}
		if masked += len(list[i].Value.Bytes()); masked > protocol.MaxMaskedBytes {
			control.Wipe(list)
			return nil, protocol.ErrTooManyMasked("spec." + fields[i])
		}
	}
	return list, nil
}

// check refuses a value that cannot be used in the way that the spec wants.
func check(s *control.Secret) error {
	switch {
	case s.Env != "" && bytes.IndexByte(s.Value.Bytes(), 0) >= 0:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the value has a NUL byte, which no environment variable can have; use a file")
	case s.Mask && len(bytes.TrimRight(s.Value.Bytes(), "\r\n")) < leastMasked:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the value is too short to be masked: it must have at least %d bytes", leastMasked)
	}
	return nil
}

// inField returns err with the field of the spec.
func inField(err error, field string) error {
	if err == nil {
		return nil
	}
	named := *protocol.AsError(err)
	named.Field = field
	return &named
}
