package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// EveryTenant is the key in [Defaults] of the defaults for all tenants.
const EveryTenant = "*"

// maxDefaults limits the encoded size of a tenant's defaults in bytes, because the history of each sandbox
// contains them.
const maxDefaults = 64 << 10

// Defaults maps each tenant to the spec over which its requests are merged.
type Defaults map[string]protocol.SandboxSpec

// For returns the defaults of a tenant: the defaults for every tenant, overridden by the tenant's own.
func (d Defaults) For(tenant string) protocol.SandboxSpec { return Merge(d[EveryTenant], d[tenant]) }

// ParseDefaults parses a map from tenants, or [EveryTenant], to their defaults. Errors: invalid_argument with
// line, column and field.
func ParseDefaults(data []byte, o Options) (Defaults, error) {
	defaults := Defaults{}
	d, err := parseInto(data, o, "defaults", reflect.ValueOf(&defaults).Elem())
	if err != nil {
		return nil, err
	}
	if err := d.locateBelow("defaults", defaults.Validate()); err != nil {
		return nil, err
	}
	return defaults, nil
}

// parseInto decodes a text of at most one document into a value. The fields in errors begin with the given field.
func parseInto(data []byte, o Options, field string, into reflect.Value) (*Document, error) {
	if len(data) > MaxFileBytes {
		return nil, fault(o.Name, field, "has more than %d bytes", MaxFileBytes)
	}
	d := newDocument(o.Name)
	seen := false
	for root, err := range roots(data, o.Name, field) {
		if err != nil {
			return nil, err
		}
		if seen {
			return nil, faultAt(o.Name, field, position{root.Line, root.Column}, "there is more than one document")
		}
		seen = true
		if err := (&decoder{document: d, options: o, field: field}).root(root, into); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Validate checks that the defaults of each tenant can be the base for the tenant's requests. Errors: invalid_argument
// with the field.
func (d Defaults) Validate() error {
	for _, tenant := range slices.Sorted(maps.Keys(d)) {
		if err := d.validate(tenant); err != nil {
			e := *protocol.AsError(err)
			e.Field = strings.Replace(e.Field, "spec", "defaults."+tenant, 1)
			return &e
		}
	}
	return nil
}

func (d Defaults) validate(tenant string) error {
	s := d[tenant]
	switch {
	case tenant != EveryTenant && protocol.ValidateID("spec", tenant) != nil:
		return protocol.Invalid("spec", "is not the name of a tenant, or %q for every tenant", EveryTenant)
	case s.Image != "":
		return protocol.Invalid("spec.image", "cannot have a default: each request names its image")
	case len(s.Command) > 0:
		return protocol.Invalid("spec.command", "cannot have a default: a request without a command asks for none")
	case len(s.Copies) > 0:
		return protocol.Invalid("spec.copies", "cannot have a default: uploaded trees are not kept forever")
	case s.GPUs != "":
		return protocol.Invalid("spec.gpus", "cannot have a default: a request could not opt out")
	case s.ReadOnly:
		return protocol.Invalid("spec.read_only",
			"cannot have a default: a request could not opt out, and could not use copies")
	}
	effective := s
	if tenant != EveryTenant {
		effective = d.For(tenant)
	}
	if n := len(protocol.Encode(&effective)); n > maxDefaults {
		return protocol.Invalid("spec", "has %d bytes, at most %d are allowed", n, maxDefaults)
	}
	effective.Image = "any"
	return effective.Validate()
}

// Over merges a tenant's request over the tenant's defaults. It rejects a conflict between them, and names the field.
func (d Defaults) Over(tenant string, request protocol.SandboxSpec) (protocol.SandboxSpec, error) {
	below := d.For(tenant)
	if isEmpty(reflect.ValueOf(below)) {
		return request, nil
	}
	merged := Merge(below, request)
	err := merged.Validate()
	if err != nil {
		e := *protocol.AsError(err)
		e.Message = "with the defaults of tenant " + tenant + ": " + e.Message
		err = &e
	}
	return merged, err
}
