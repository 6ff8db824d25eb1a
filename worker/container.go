package worker

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// containerSpec is the sandbox's primary container.
func (s *sandbox) containerSpec(b *protocol.Sandbox, d hostdir.Dir, image docker.Image, bound hostfiles.Bindings, gpus []string) docker.ContainerSpec {
	at := func(name string) string { return path.Join(control.ContainerAt, name) }
	spec := docker.ContainerSpec{
		Name: s.name(), Image: image.ID,
		Hostname: s.hostname(b), Network: s.name(), Labels: s.labels(b),
		CPU: b.Spec.CPU, Memory: int64(b.Spec.Memory), PIDs: b.Spec.PIDs,
		Binds: slices.Concat([]docker.Bind{
			{Source: s.w.supervisor, Target: at("supervisor"), ReadOnly: true},
			{Source: d.Ctl(), Target: at("ctl"), ReadOnly: true},
		}, d.EtcBinds(mountTargets(&b.Spec, bound)), bound.Binds(d)),
	}
	spec.Labels[docker.LabelDirectory] = d.Path
	setProfile(&spec, b.Spec.Profile)
	spec.ReadOnlyRoot, spec.Runtime, spec.GPUs = b.Spec.ReadOnly, b.Spec.Runtime, gpus
	if len(gpus) > 0 {
		spec.Labels[docker.LabelGPUs] = strings.Join(gpus, ",")
	}
	spec.ShmSize, spec.Disk = int64(b.Spec.ShmSize), int64(b.Spec.Disk)
	spec.Tmpfs = map[string]int64{}
	for _, m := range b.Spec.Tmpfs {
		spec.Tmpfs[m.Target] = int64(m.Size)
		if m.Size == 0 {
			spec.Tmpfs[m.Target] = int64(b.Spec.Memory / 2)
		}
	}
	env := maps.Clone(bound.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, b.Spec.Env)
	for name, value := range env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	sort.Strings(spec.Env)
	return spec
}

// hostname is what the primary container calls itself.
func (s *sandbox) hostname(b *protocol.Sandbox) string { return cmp.Or(b.Spec.Hostname, s.key.ID) }

// mountTargets are the paths of the primary container at which something is mounted.
func mountTargets(spec *protocol.SandboxSpec, bound hostfiles.Bindings) []string {
	var targets []string
	for _, b := range bound.List {
		targets = append(targets, path.Clean(b.Target))
	}
	for _, m := range spec.Tmpfs {
		targets = append(targets, path.Clean(m.Target))
	}
	return targets
}

// setProfile makes the supervisor process 1 of a container, as root. With the hardened profile it has
// the few capabilities that it needs to start commands as others, without these capabilities, and to
// end them; with the standard one, those that commands run as root are to have.
func setProfile(spec *docker.ContainerSpec, profile string) {
	spec.User, spec.Cwd, spec.NoNewPrivileges = "0:0", "/", true
	spec.Entrypoint = []string{path.Join(control.ContainerAt, "supervisor")}
	spec.CapDrop, spec.CapAdd = []string{"ALL"}, []string{"SETUID", "SETGID", "KILL", "SETPCAP"}
	if profile == protocol.ProfileStandard {
		spec.Entrypoint = append(spec.Entrypoint, "-privileged")
		spec.CapAdd = append(slices.Clone(standardCapabilities), control.OwnCapability)
	}
}

// standardCapabilities are Docker's default ones without NET_RAW, which forges packets, and MKNOD,
// which makes device files.
var standardCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

func (s *sandbox) labels(b *protocol.Sandbox) map[string]string {
	return map[string]string{
		docker.LabelTenant: s.key.Tenant, docker.LabelSandbox: s.key.ID, docker.LabelRole: "primary",
		docker.LabelGeneration: strconv.FormatUint(b.Generation, 10),
	}
}
