package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// EveryTenant is the name below which [Defaults] has what holds for every tenant.
const EveryTenant = "*"

// maxDefaults bounds the defaults of a tenant, encoded: they are put into the history of each of its
// sandboxes.
const maxDefaults = 64 << 10

// Defaults are specs by tenant, which lie below what requests say.
type Defaults map[string]protocol.SandboxSpec

// For is what lies below the requests of a tenant: what holds for all, and over it what holds for
// this one.
func (d Defaults) For(tenant string) protocol.SandboxSpec { return Merge(d[EveryTenant], d[tenant]) }

// ParseDefaults reads a map of tenants, or [EveryTenant], and the fields of their defaults. Errors:
// invalid_argument that names line, column and field.
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

// parseInto reads a text of at most one document into a value, whose fields errors name below field.
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
		if err := (&decoder{document: d, options: o, field: field}).whole(root, into); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Validate checks that the defaults can be below any request. The error names the field.
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
		return protocol.Invalid("spec.image", "cannot have a default: each request says its image")
	case len(s.Command) > 0:
		return protocol.Invalid("spec.command", "cannot have a default: a request without a command asks for none")
	case len(s.Copies) > 0:
		return protocol.Invalid("spec.copies", "cannot have a default: uploaded trees are not kept for ever")
	case s.GPUs != "":
		return protocol.Invalid("spec.gpus", "cannot have a default: a request could not say that it wants none")
	case s.ReadOnly:
		return protocol.Invalid("spec.read_only", "cannot have a default: a request could not say that it wants to write, nor have copies")
	}
	whole := s
	if tenant != EveryTenant {
		whole = d.For(tenant)
	}
	if n := len(protocol.Encode(&whole)); n > maxDefaults {
		return protocol.Invalid("spec", "has %d bytes, at most %d are allowed", n, maxDefaults)
	}
	whole.Image = "any"
	return whole.Validate()
}

// Over puts what a tenant's request says over its defaults. What contradicts itself only then is
// refused with the field.
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
