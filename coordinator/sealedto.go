package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// keyOf returns the fleet key to which the value behind a field is sealed; "" if the value is missing or damaged.
func keyOf(c *coordinator, tenant string, f protocol.SecretField) (key string) {
	if f.Use == nil {
		key, _ = seal.KeyOf(f.Sealed) // the worker hears that it is damaged
		return key
	}
	v, err := c.secretVersion(tenant, f.Use)
	if err != nil { // the worker hears that the secret is missing
		return ""
	}
	return v.Key
}

// whyUnopened returns why this coordinator cannot give a worker the values behind the fields; "" if it can.
func whyUnopened(c *coordinator, tenant string, fields []protocol.SecretField) string {
	for _, f := range fields {
		if key := keyOf(c, tenant, f); key != "" && !c.cfg.SecretsKeys.Has(key) {
			return fmt.Sprintf("coordinator %s cannot open spec.%s, because its file coordinator.secrets_key lacks the fleet "+
				"key %s: a coordinator that has the key must run", c.cfg.Name, f.Field, key)
		}
	}
	return ""
}

// sealedTo counts what is sealed to fleet keys other than the one to which clients seal now. Only values of the tenant
// count, or those of all tenants if it is empty. boxes are the living sandboxes.
func sealedTo(c *coordinator, tenant string, boxes []*protocol.Sandbox) (list []protocol.SealedTo) {
	of := func(key string) *protocol.SealedTo {
		i := slices.IndexFunc(list, func(s protocol.SealedTo) bool { return s.Key == key })
		if i < 0 {
			i, list = len(list), append(list, protocol.SealedTo{Key: key, Missing: !c.cfg.SecretsKeys.Has(key)})
		}
		return &list[i]
	}
	for key, count := range c.secrets.keys(tenant) {
		if key != "" && key != c.cfg.SecretsKeys.Public() {
			of(key).Versions += count
		}
	}
	for _, b := range boxes {
		var used []string
		for _, f := range sensitiveOf(c, b) {
			if key := keyOf(c, b.Tenant, f); key != "" && key != c.cfg.SecretsKeys.Public() && !slices.Contains(used, key) {
				used = append(used, key)
				of(key).Sandboxes++
			}
		}
	}
	slices.SortFunc(list, func(a, b protocol.SealedTo) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// sensitiveOf returns the sensitive variables of a sandbox and of its execs that have not ended.
func sensitiveOf(c *coordinator, b *protocol.Sandbox) []protocol.SecretField {
	fields := b.Spec.SecretFields()
	if b.ActiveExecs > 0 {
		c.projection.journal(key{Tenant: b.Tenant, ID: b.ID}).View(func(s *protocol.State, _ uint64) {
			for _, x := range s.Active() {
				fields = append(fields, x.Spec.SecretFields()...)
			}
		})
	}
	return slices.DeleteFunc(fields, func(f protocol.SecretField) bool { return f.Use != nil })
}
