package sandbox

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/secrets"
	"github.com/boxfleet/boxfleet/worker/treecopy"
)

// containers makes and finds the sandbox's containers on the engine: the primary container and the containers of
// services. The type implements service.Containers.
type containers struct{ s *Sandbox }

func (s *Sandbox) containers() containers { return containers{s} }

// Inspect returns the sandbox's container with this name, or the zero value if the sandbox has no such container. It
// ignores a container with this name that belongs to another owner. While such a container exists, the engine refuses
// to make the sandbox's container.
func (l containers) Inspect(ctx context.Context, name string) (docker.Container, error) {
	c, err := l.s.host.Engine.Inspect(ctx, name)
	if docker.IsNotFound(err) {
		return docker.Container{}, nil
	}
	if err != nil {
		return c, err
	}
	if k, ok := l.s.host.Owned.Owner(&c); !ok || k != l.s.key {
		return docker.Container{}, nil
	}
	return c, nil
}

// Image gets an image for a container of the sandbox, and appends the progress of a pull. The image stays on the host
// until the caller calls the returned function release. The caller does so once the container exists, because the
// container then keeps the image on the host.
func (l containers) Image(ctx context.Context, generation uint64, ref, pull string) (
	_ docker.Image, release func(), err error) {
	s := l.s
	return s.host.Images.Get(ctx, ref, pull, func(p protocol.PullProgress) {
		b := &protocol.Sandbox{Generation: generation}
		err := s.phases.append(ctx, b, func(st *protocol.State) []protocol.Event {
			return decide.PullProgress(st, s.phases.of(b).Current(), &p)
		})
		if decide.IgnoreSuperseded(err) != nil && ctx.Err() == nil {
			s.log.Warn("could not append the progress of an image pull", "image", p.Image, "error", err)
		}
	})
}

// CopyTrees copies uploaded trees into a container that has not started yet. service is the name of the container's
// service, or "" for the primary container. mounted lists the paths in the container at which something is mounted.
func (l containers) CopyTrees(ctx context.Context, container, service string, copies []protocol.Copy,
	mounted []string) error {
	to := treecopy.Container{ID: container, Sandbox: l.s.key, Service: service, Mounted: mounted}
	return l.s.host.Trees.Copy(ctx, to, copies)
}

// containerSpec describes the sandbox's primary container to the engine.
func (c *creation) containerSpec(gpus []string) (docker.ContainerSpec, error) {
	s, b, d := c.s, c.b, c.dir
	spec := docker.ContainerSpec{
		Name: s.name(), Image: c.image.ID, Hostname: hostname(b, s.key), Network: s.name(), Labels: labels(b, s.key),
		CPU: b.Spec.CPU, Memory: int64(b.Spec.Memory), PIDs: b.Spec.PIDs,
		Binds: slices.Concat(attach.Binds(s.host.Supervisor, d.Ctl()),
			d.EtcBinds(mountTargets(&b.Spec, c.bindings)), c.bindings.Binds(d)),
		DNS: s.host.NameServers(&b.Spec),
	}
	spec.Labels[docker.LabelDirectory] = d.Path
	attach.SetProcess(&spec, b.Spec.Profile)
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
	spec.Env = environment(c.bindings.Env, b.Spec.Env)
	hostfiles.CoverVolumes(&spec, c.volumes, b.Spec.Memory)
	err := hostfiles.MountSecrets(&spec, secrets.OfSandbox(&b.Spec).Files(), mountTargets(&b.Spec, c.bindings), c.volumes,
		b.Spec.Copies, "")
	return spec, err
}

// environment merges the environment variables of tools and of the spec, and sorts them. The spec overrides the tools.
func environment(tools, spec map[string]string) (list []string) {
	env := maps.Clone(tools)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, spec)
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	sort.Strings(list)
	return list
}

func hostname(b *protocol.Sandbox, k protocol.SandboxKey) string {
	return cmp.Or(b.Spec.Hostname, k.ID)
}

// mountTargets returns the paths in the primary container at which something is mounted.
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

func labels(b *protocol.Sandbox, k protocol.SandboxKey) map[string]string {
	return map[string]string{
		docker.LabelTenant: k.Tenant, docker.LabelSandbox: k.ID, docker.LabelRole: "primary",
		docker.LabelGeneration: strconv.FormatUint(b.Generation, 10),
	}
}
