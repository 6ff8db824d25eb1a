package attach

import (
	"path"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// SetProcess makes a container run the supervisor as PID 1, as root. With the hardened profile, the supervisor has only
// the capabilities that it needs to start commands as other users and to end them; the commands have no capabilities.
// With the standard profile, the supervisor also has the capabilities that it passes to commands run as root.
func SetProcess(spec *docker.ContainerSpec, profile string) {
	spec.User, spec.Cwd, spec.NoNewPrivileges = "0:0", "/", true
	spec.Entrypoint = []string{path.Join(control.ContainerAt, "supervisor")}
	spec.CapDrop, spec.CapAdd = []string{"ALL"}, []string{"SETUID", "SETGID", "KILL", "SETPCAP"}
	if profile == protocol.ProfileStandard {
		spec.Entrypoint = append(spec.Entrypoint, "-privileged")
		spec.CapAdd = append(slices.Clone(standardCapabilities), control.OwnCapability)
	}
}

// standardCapabilities are Docker's default capabilities without NET_RAW, which allows forging packets, and MKNOD,
// which allows creating device files.
var standardCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// Binds returns the mounts that a supervisor needs: its binary, and the directory of the worker's socket.
func Binds(supervisor, controlDir string) []docker.Bind {
	at := func(name string) string { return path.Join(control.ContainerAt, name) }
	return []docker.Bind{
		{Source: supervisor, Target: at("supervisor"), ReadOnly: true},
		{Source: controlDir, Target: at("ctl"), ReadOnly: true},
	}
}
