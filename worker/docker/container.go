package docker

import (
	"context"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"

	"github.com/boxfleet/boxfleet/protocol"
)

// CoverInodes is a mount option. In a container's mount table, it identifies the file systems of
// [ContainerSpec.Covers]: no other file system of a container is limited to this number of inodes.
const CoverInodes = "nr_inodes=1000003"

// ContainerSpec describes a container. For settings without a field, the engine's defaults apply, with four exceptions:
// there is no restart policy; there is no log driver, because the supervisor writes no logs; the image's health check
// is off; and the stop signal is TERM. The container runs the supervisor, which applies the image's health check and
// stop signal to the image's command.
type ContainerSpec struct {
	Name            string
	Image           string
	Entrypoint      []string // nil: the image's entrypoint
	Cmd             []string // nil: the image's command, if Entrypoint is nil too
	Env             []string // NAME=value, added to the image's environment
	Labels          map[string]string
	User            string // "": the image's user
	Cwd             string // "": the image's working directory
	Hostname        string
	Network         string // "": the engine's default bridge
	Aliases         []string
	DNS             []string        // name servers for names outside of the network; nil: the engine's
	Ports           []protocol.Port // published on the host's loopback
	Binds           []Bind
	CPU             float64 // cores; 0: no limit
	Memory          int64   // bytes, without swap; 0: no limit
	PIDs            int64   // 0: no limit
	CapDrop         []string
	CapAdd          []string
	NoNewPrivileges bool
	ReadOnlyRoot    bool
	Tmpfs           map[string]int64 // size in bytes of each file system in memory, by target
	Covers          map[string]int64 // like Tmpfs, with [CoverInodes]; the caller unmounts each before any command runs
	Secrets         string           // mount options of a file system in memory at [protocol.SecretsDir]; "": none
	ShmSize         int64            // size of /dev/shm in bytes; 0: the engine's default
	Disk            int64            // size of the container's own layer in bytes; 0: no limit
	Runtime         string           // OCI runtime; "": the engine's default
	GPUs            []string         // GPUs by index or id, as the runtime names them; nil: no GPUs
}

// Bind mounts a path of the engine's host, which must exist, with private propagation.
type Bind struct {
	Source       string
	Target       string
	ReadOnly     bool
	NonRecursive bool // leaves out mounts below Source; they would stay writable even in a read-only bind
}

// Container is the engine's description of a container.
type Container struct {
	ID      string
	Name    string
	Image   string // from Inspect: the image's id; from Containers: the reference that the container was created from
	Labels  map[string]string
	State   string // created, running, paused, restarting, removing, exited, dead
	Running bool
	Created time.Time

	// Doubtful means that the container's image has Boxfleet labels, or no longer exists. The container may have its
	// labels from that image, and anyone may have built the image. So the labels do not prove that Boxfleet created the
	// container.
	Doubtful bool
	Binds    []string // the mounted paths of the engine's host

	// The following fields are set only by Inspect.
	Pid        int // PID of the first process on the engine's host; 0 if the container does not run
	ExitCode   int
	OOMKilled  bool
	Error      string // why the last start failed
	StartedAt  time.Time
	FinishedAt time.Time
	Ports      []protocol.Port // the published ports, while the container runs
	Hostname   string
	Address    string // IP address while the container runs; "" if the container has no network or several
}

// containers has the methods for containers and the files in them.
type containers struct {
	*connection
	imageLabels  *imageLabels
	emptyLayer   func(ctx context.Context, dir string) error // see [Config.EmptyLayer]; may be nil
	stallTimeout time.Duration
}

// CreateContainer creates a container and returns its id. It does not pull the image, see [Engine.PullImage]. It fails
// with already_exists if the name is taken, with [ErrImageNotFound] if the engine does not have the image, and with
// invalid_argument if the engine refuses the spec.
func (cs *containers) CreateContainer(ctx context.Context, spec ContainerSpec) (string, error) {
	var id string
	config, host, networking := cs.configs(spec)
	err := cs.do(ctx, call{verb: "create", kind: kindContainer, name: spec.Name, limit: cs.changeLimit()},
		func(ctx context.Context) error {
			made, err := cs.client.ContainerCreate(ctx, config, host, networking, nil, spec.Name)
			cs.warn(ctx, "container", spec.Name, made.Warnings...)
			id = made.ID
			return err
		})
	return id, err
}

// configs translates a spec into the Engine's types.
func (cs *containers) configs(spec ContainerSpec) (*container.Config, *container.HostConfig,
	*network.NetworkingConfig) {
	config := &container.Config{
		Image:       spec.Image,
		Entrypoint:  spec.Entrypoint,
		Cmd:         spec.Cmd,
		Env:         spec.Env,
		Labels:      cs.containerLabelled(spec.Labels),
		User:        spec.User,
		WorkingDir:  spec.Cwd,
		Hostname:    spec.Hostname,
		StopSignal:  "SIGTERM",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	host := &container.HostConfig{
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     container.LogConfig{Type: "none"},
		CapDrop:       spec.CapDrop,
		CapAdd:        spec.CapAdd,
		Resources: container.Resources{
			NanoCPUs:   int64(math.Round(spec.CPU * 1e9)),
			Memory:     spec.Memory,
			MemorySwap: spec.Memory, // the limit of memory plus swap; the same value means no swap
		},
	}
	host.ReadonlyRootfs, host.ShmSize, host.Runtime = spec.ReadOnlyRoot, spec.ShmSize, spec.Runtime
	host.Tmpfs, host.Mounts = tmpfsOf(&spec), mountsOf(spec.Binds)
	if spec.Disk > 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(spec.Disk, 10)}
	}
	if len(spec.GPUs) > 0 { // request GPUs by id: with a count, every container would get the same first GPUs
		host.DeviceRequests = []container.DeviceRequest{{DeviceIDs: spec.GPUs, Capabilities: [][]string{{"gpu"}}}}
	}
	if spec.PIDs > 0 {
		host.PidsLimit = &spec.PIDs
	}
	if spec.NoNewPrivileges {
		host.SecurityOpt = []string{"no-new-privileges"}
	}
	host.DNS = spec.DNS
	config.ExposedPorts, host.PortBindings = published(spec.Ports)
	networking := &network.NetworkingConfig{}
	if spec.Network != "" {
		host.NetworkMode = container.NetworkMode(spec.Network)
		networking.EndpointsConfig = map[string]*network.EndpointSettings{spec.Network: {Aliases: spec.Aliases}}
	}
	return config, host, networking
}

// tmpfsOf returns the mount options of the container's tmpfs file systems by their paths.
func tmpfsOf(spec *ContainerSpec) map[string]string {
	tmpfs := map[string]string{}
	// The option exec replaces the engine's default noexec, which would break builds that compile programs below /tmp and
	// run them.
	for target, size := range spec.Tmpfs {
		tmpfs[target] = "rw,exec,nosuid,nodev,mode=1777,size=" + strconv.FormatInt(size, 10)
	}
	for target, size := range spec.Covers {
		tmpfs[target] = "rw,exec,nosuid,nodev,mode=1777," + CoverInodes + ",size=" + strconv.FormatInt(size, 10)
	}
	if spec.Secrets != "" {
		tmpfs[protocol.SecretsDir] = spec.Secrets
	}
	return tmpfs
}

func mountsOf(binds []Bind) (mounts []mount.Mount) {
	for _, b := range binds {
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: b.NonRecursive},
		})
	}
	return mounts
}

// StartContainer starts a container if it is not running. It fails with failed_precondition and reason start_failed if
// no retry can succeed, for example because the container's command is missing.
func (cs *containers) StartContainer(ctx context.Context, id string) error {
	return cs.do(ctx, call{verb: "start", kind: kindContainer, name: id, limit: cs.runLimit()},
		func(ctx context.Context) error {
			return cs.client.ContainerStart(ctx, id, container.StartOptions{})
		})
}

// StopContainer sends TERM, and sends KILL if the container still runs after the grace period, which is rounded up to a
// full second. It waits until the container has ended. A container that is stopped already or does not exist is no
// error.
func (cs *containers) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	seconds := int(math.Ceil(grace.Seconds()))
	limit := cs.runLimit() + time.Duration(seconds)*time.Second
	err := cs.do(ctx, call{verb: "stop", kind: kindContainer, name: id, limit: limit}, func(ctx context.Context) error {
		return cs.client.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds})
	})
	return absentIsFine(err)
}

// KillContainer sends KILL and does not wait. A container that is stopped already or does not exist is no error.
func (cs *containers) KillContainer(ctx context.Context, id string) error {
	err := cs.do(ctx, call{verb: "kill", kind: kindContainer, name: id, limit: cs.changeLimit()},
		func(ctx context.Context) error {
			return cs.client.ContainerKill(ctx, id, "KILL")
		})
	if protocol.CodeOf(err) == protocol.FailedPrecondition && strings.Contains(err.Error(), "is not running") {
		return nil
	}
	return absentIsFine(err)
}

// RemoveContainer kills a container, removes it with its anonymous volumes, and waits until it is gone. It also waits
// for a removal that another client has started. A container that does not exist is no error.
func (cs *containers) RemoveContainer(ctx context.Context, id string) error {
	err := cs.removeContainer(ctx, id)
	if err == nil || cs.emptyLayer == nil || !tooDeep.MatchString(err.Error()) {
		return err
	}
	if emptyErr := cs.emptyLayerOf(ctx, id); emptyErr != nil {
		return errors.Join(err, emptyErr)
	}
	return cs.removeContainer(ctx, id)
}

// tooDeep matches the engine's error for a container's layer that is too deep to remove. The engine opens one file for
// each level of nested directories, and has reached its limit of open files.
var tooDeep = regexp.MustCompile(`failed to remove root filesystem: .*too many open files`)

// emptyLayerOf empties the layer of a container that the engine failed to remove. It does nothing unless the
// container's state is dead, which means that the engine no longer uses the layer.
func (cs *containers) emptyLayerOf(ctx context.Context, id string) error {
	layer := ""
	err := cs.do(ctx, call{verb: "inspect", kind: kindContainer, name: id, limit: cs.readLimit()},
		func(ctx context.Context) error {
			got, err := cs.client.ContainerInspect(ctx, id)
			if err == nil && got.ContainerJSONBase != nil && got.State != nil && got.State.Dead {
				layer = got.GraphDriver.Data["UpperDir"]
			}
			return err
		})
	if err != nil || layer == "" {
		return err
	}
	if err := cs.fence(); err != nil {
		return err
	}
	return cs.emptyLayer(ctx, layer)
}

func (cs *containers) removeContainer(ctx context.Context, id string) error {
	c := call{verb: "remove", kind: kindContainer, name: id, limit: cs.runLimit()}
	err := cs.do(ctx, c, func(ctx context.Context) error {
		return cs.client.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	})
	if protocol.CodeOf(err) == protocol.FailedPrecondition && strings.Contains(err.Error(), "already in progress") {
		return cs.awaitGone(ctx, c)
	}
	return absentIsFine(err)
}

// awaitGone waits for the end of a removal that another client started.
func (cs *containers) awaitGone(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	const pause = 20 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if _, err := cs.Inspect(ctx, c.name); err != nil {
			return absentIsFine(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return translate(ctx, c, ctx.Err())
		}
	}
}

// Inspect reads a container by id or name.
func (cs *containers) Inspect(ctx context.Context, idOrName string) (Container, error) {
	var c Container
	err := cs.do(ctx, call{verb: "inspect", kind: kindContainer, name: idOrName, limit: cs.readLimit()},
		func(ctx context.Context) error {
			got, err := cs.client.ContainerInspect(ctx, idOrName)
			if err != nil {
				return err
			}
			if got.ContainerJSONBase == nil || got.State == nil || got.Config == nil {
				return protocol.Errorf(protocol.Unavailable, ReasonEngineError,
					"inspect container %s: the engine's response lacks the container's state", idOrName)
			}
			c = Container{
				ID: got.ID, Name: strings.TrimPrefix(got.Name, "/"), Image: got.Image, Labels: got.Config.Labels,
				State: string(got.State.Status), Running: got.State.Running, Created: instant(got.Created),
				Pid: got.State.Pid, ExitCode: got.State.ExitCode, OOMKilled: got.State.OOMKilled, Error: got.State.Error,
				StartedAt: instant(got.State.StartedAt), FinishedAt: instant(got.State.FinishedAt), Hostname: got.Config.Hostname,
			}
			if got.NetworkSettings != nil {
				c.Ports = bound(got.NetworkSettings.Ports)
				for _, n := range got.NetworkSettings.Networks {
					if n != nil && len(got.NetworkSettings.Networks) == 1 {
						c.Address = n.IPAddress
					}
				}
			}
			c.Binds = bindsOf(got.Mounts)
			if c.Labels[LabelDeployment] != "" {
				c.Doubtful, err = cs.imageLabels.labelsOf(ctx, got.Image)
			}
			return err
		})
	return c, err
}

// Containers lists the containers of this deployment in all states, with one call.
func (cs *containers) Containers(ctx context.Context) ([]Container, error) {
	var containers []Container
	err := cs.do(ctx, call{verb: "list", kind: kindContainer, limit: cs.readLimit()}, func(ctx context.Context) error {
		found, err := cs.client.ContainerList(ctx, container.ListOptions{
			All: true, Filters: filters.NewArgs(filters.Arg("label", LabelDeployment+"="+cs.deployment)),
		})
		for _, got := range found {
			c := Container{
				ID: got.ID, Image: got.Image, Labels: got.Labels, State: string(got.State),
				// As in the engine's response to an inspection, paused and restarting containers also count as running.
				Running: got.State == container.StateRunning || got.State == container.StatePaused ||
					got.State == container.StateRestarting,
				Created: time.Unix(got.Created, 0).UTC(), Binds: bindsOf(got.Mounts),
			}
			if c.Doubtful, err = cs.imageLabels.labelsOf(ctx, got.ImageID); err != nil {
				return err
			}
			if len(got.Names) > 0 {
				c.Name = strings.TrimPrefix(got.Names[0], "/")
			}
			containers = append(containers, c)
		}
		return err
	})
	return containers, err
}

func bindsOf(mounts []container.MountPoint) (sources []string) {
	for _, m := range mounts {
		if m.Type == mount.TypeBind {
			sources = append(sources, m.Source)
		}
	}
	return sources
}

// instant parses a time as the Engine writes it. An invalid text becomes the zero time.
func instant(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
