package protocol

// SandboxKey identifies a sandbox in a deployment. It is not a wire type: messages and subjects carry its
// parts.
type SandboxKey struct{ Tenant, ID string }

// String returns TENANT/ID.
func (k SandboxKey) String() string { return k.Tenant + "/" + k.ID }
