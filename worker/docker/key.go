package docker

import (
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
)

// ObjectName returns the name of a sandbox's container and network on the engine. The names of services begin with this
// name and a dot. Ids contain no dots, so no two objects share a name.
func ObjectName(deployment string, k protocol.SandboxKey) string {
	return "boxfleet." + deployment + "." + k.Tenant + "." + k.ID
}

// KeyOf returns the sandbox that an object's labels name. It returns false if the labels name no sandbox.
func KeyOf(labels map[string]string) (protocol.SandboxKey, bool) {
	k := protocol.SandboxKey{Tenant: labels[LabelTenant], ID: labels[LabelSandbox]}
	return k, protocol.ValidateID("", k.Tenant) == nil && protocol.ValidateID("", k.ID) == nil
}

// GenerationOf reads the generation from an object's labels. If the label is not a number, GenerationOf returns 0,
// which is no valid generation.
func GenerationOf(labels map[string]string) uint64 {
	g, _ := strconv.ParseUint(labels[LabelGeneration], 10, 64)
	return g
}

// killedExit is the exit code of a process that was ended by KILL.
const killedExit = 128 + 9

// OutOfMemory reports whether a container that ended by itself ran out of memory. OOMKilled alone does not prove that:
// the engine sets OOMKilled when any process in the container was killed for lack of memory, and clears it only when
// the container starts again.
func (c *Container) OutOfMemory() bool { return c.OOMKilled && c.ExitCode == killedExit }
