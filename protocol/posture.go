package protocol

// Posture is what keeps the sandboxes of a host from it and from each other, as its engine and kernel say it.
type Posture struct {
	Seccomp       string `json:"seccomp"`                  // the engine's profile: default or builtin, the path of another, unconfined, or none
	UserNamespace bool   `json:"user_namespace,omitempty"` // root of a container is not root of the host
	Rootless      bool   `json:"rootless,omitempty"`       // the engine does not run as root
	MAC           string `json:"mac,omitempty"`            // apparmor or selinux
	Cgroup        string `json:"cgroup,omitempty"`         // version, 1 or 2
	Kernel        string `json:"kernel,omitempty"`
	Runc          string `json:"runc,omitempty"`
	Containerd    string `json:"containerd,omitempty"`

	// What an operator should change, a sentence each.
	Warnings []string `json:"warnings,omitempty"`
}
