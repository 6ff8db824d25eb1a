package protocol

// Posture describes what isolates the sandboxes of a host from the host and from each other, as reported by its
// engine and kernel.
type Posture struct {
	// Seccomp is the engine's seccomp profile: default, builtin, unconfined, none, or the path of a profile.
	Seccomp       string `json:"seccomp"`
	UserNamespace bool   `json:"user_namespace,omitempty"` // root in a container is not root on the host
	Rootless      bool   `json:"rootless,omitempty"`       // the engine does not run as root
	MAC           string `json:"mac,omitempty"`            // apparmor or selinux
	Cgroup        string `json:"cgroup,omitempty"`         // cgroup version, 1 or 2
	Kernel        string `json:"kernel,omitempty"`
	Runc          string `json:"runc,omitempty"`
	Containerd    string `json:"containerd,omitempty"`

	// Warnings are recommendations to the operator, one sentence each.
	Warnings []string `json:"warnings,omitempty"`
}
