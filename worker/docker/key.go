package docker

import (
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
)

// ObjectName is what the Engine calls a sandbox's container and network. Ids have no dot, so no two sandboxes, and
// no service of one sandbox and another sandbox, share a name.
func ObjectName(deployment string, k protocol.SandboxKey) string {
	return "boxfleet." + deployment + "." + k.Tenant + "." + k.ID
}

// KeyOf reads which sandbox an object's labels name. It returns false if they name none.
func KeyOf(labels map[string]string) (protocol.SandboxKey, bool) {
	k := protocol.SandboxKey{Tenant: labels[LabelTenant], ID: labels[LabelSandbox]}
	return k, protocol.ValidateID("", k.Tenant) == nil && protocol.ValidateID("", k.ID) == nil
}

// GenerationOf reads the generation from an object's labels. A label that is not a number gives 0, which no
// sandbox has.
func GenerationOf(labels map[string]string) uint64 {
	g, _ := strconv.ParseUint(labels[LabelGeneration], 10, 64)
	return g
}

// killedExit is the exit code of a process that KILL ended.
const killedExit = 128 + 9

// OutOfMemory reports whether a container that ended by itself ran out of memory. OOMKilled alone does not prove it: the
// engine sets it when any process in the container was killed, and clears it only when the container starts.
func (c *Container) OutOfMemory() bool { return c.OOMKilled && c.ExitCode == killedExit }
