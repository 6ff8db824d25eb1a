package spec

import (
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// Quota is one tenant's entry in a file of quotas. If a limit is nil, the limit of the entry [EveryTenant] applies. A
// limit of 0 means no limit. [protocol.TenantUse] says what each limit counts.
type Quota struct {
	Sandboxes *int            `json:"sandboxes"`
	Execs     *int            `json:"execs"`
	Waiting   *int            `json:"waiting"`
	CPU       *float64        `json:"cpu"` // cores
	Memory    *protocol.Bytes `json:"memory"`
	Disk      *protocol.Bytes `json:"disk"`
	Output    *protocol.Bytes `json:"output"`
	Uploads   *protocol.Bytes `json:"uploads"`
}

// Quotas maps tenants, or [EveryTenant], to their quotas.
type Quotas map[string]Quota

// maxQuotas is how many entries a file of quotas may have: a coordinator sends all of them in one message.
const maxQuotas = 2000

// ParseQuotas parses a map from tenants, or [EveryTenant], to their quotas. Errors: invalid_argument with line, column
// and field.
func ParseQuotas(data []byte, o Options) (Quotas, error) {
	quotas := Quotas{}
	d, err := parseInto(data, o, "quotas", reflect.ValueOf(&quotas).Elem())
	if err != nil {
		return nil, err
	}
	if err := d.locateBelow("quotas", quotas.Validate()); err != nil {
		return nil, err
	}
	return quotas, nil
}

// Validate checks the names of the tenants and the limits. Errors: invalid_argument with the field.
func (q Quotas) Validate() error {
	if len(q) > maxQuotas {
		return protocol.Invalid("quotas", "has %d entries, at most %d are allowed", len(q), maxQuotas)
	}
	for _, tenant := range slices.Sorted(maps.Keys(q)) {
		field := "quotas." + tenant
		if tenant != EveryTenant && protocol.ValidateID(field, tenant) != nil {
			return protocol.Invalid(field, "is not the name of a tenant, or %q for every other tenant", EveryTenant)
		}
		if err := q[tenant].validate(field); err != nil {
			return err
		}
	}
	return nil
}

func (q Quota) validate(field string) error {
	for _, limit := range []struct {
		name string
		n    *int
	}{{"sandboxes", q.Sandboxes}, {"execs", q.Execs}, {"waiting", q.Waiting}} {
		if limit.n != nil && *limit.n < 0 {
			return protocol.Invalid(field+"."+limit.name, "must not be negative, got %d; 0 means no limit", *limit.n)
		}
	}
	if c := q.CPU; c != nil && (math.IsNaN(*c) || *c < 0 || *c > 1e6) {
		return protocol.Invalid(field+".cpu", "must be 0 to 1000000 cores, got %g; 0 means no limit", *c)
	}
	for _, limit := range []struct {
		name string
		n    *protocol.Bytes
	}{{"memory", q.Memory}, {"disk", q.Disk}, {"output", q.Output}, {"uploads", q.Uploads}} {
		if limit.n != nil && *limit.n < 0 {
			return protocol.Invalid(field+"."+limit.name, "must not be negative, got %d; 0 means no limit", *limit.n)
		}
	}
	return nil
}

// Resolved returns the quota of each entry. Limits that the entry omits come from the entry [EveryTenant].
func (q Quotas) Resolved() map[string]protocol.Quota {
	below := q[EveryTenant]
	all := make(map[string]protocol.Quota, len(q))
	for tenant, own := range q {
		all[tenant] = protocol.Quota{
			Sandboxes: first(own.Sandboxes, below.Sandboxes), Execs: first(own.Execs, below.Execs),
			Waiting: first(own.Waiting, below.Waiting), CPU: first(own.CPU, below.CPU),
			Memory: first(own.Memory, below.Memory), Disk: first(own.Disk, below.Disk),
			Output: first(own.Output, below.Output), Uploads: first(own.Uploads, below.Uploads),
		}
	}
	return all
}

// first returns the first value that is not nil, or 0.
func first[T any](values ...*T) (none T) {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return none
}
