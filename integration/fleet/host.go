package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/worker/firewall"
)

// host inspects an engine for the leak check, without using the worker's code.
type host struct {
	*client.Client
	deployment string
	ours       filters.Args
	namespace  string // /proc/<pid> of the process that listens on the engine's socket
}

const hostCallTimeout = 20 * time.Second

// openHost connects to a running engine.
func openHost(address, deployment string) (*host, error) {
	where := client.FromEnv
	if address != "" {
		where = client.WithHost(address)
	}
	c, err := client.NewClientWithOpts(where, client.WithAPIVersionNegotiation(), client.WithTimeout(hostCallTimeout))
	if err != nil {
		return nil, err
	}
	pid, err := firewall.Listener(strings.TrimPrefix(c.DaemonHost(), "unix://"))
	if err != nil {
		c.Close()
		return nil, err
	}
	return &host{
		Client: c, deployment: deployment, namespace: fmt.Sprintf("/proc/%d", pid),
		ours: filters.NewArgs(filters.Arg("label", "boxfleet.deployment="+deployment)),
	}, nil
}

// traces lists objects that belong to the fleet's containers and networks but carry no label of the fleet.
type traces struct {
	namespaces []string // files of the network namespaces that the engine creates
	bridges    map[string]bool
}

// note lists the traces of the deployment's containers and networks.
func (h *host) note(ctx context.Context) (traces, error) {
	t := traces{bridges: map[string]bool{}}
	containers, err := h.ContainerList(ctx, container.ListOptions{All: true, Filters: h.ours})
	if err != nil {
		return t, err
	}
	for _, c := range containers {
		got, err := h.ContainerInspect(ctx, c.ID)
		if err == nil && got.NetworkSettings != nil && got.NetworkSettings.SandboxKey != "" {
			t.namespaces = append(t.namespaces, got.NetworkSettings.SandboxKey)
		}
	}
	networks, err := h.NetworkList(ctx, network.ListOptions{Filters: h.ours})
	for _, n := range networks {
		t.bridges[n.Options["com.docker.network.bridge.name"]] = true
	}
	named, recorded, ruleErr := h.rules()
	for _, r := range append(named, recorded...) {
		t.bridges[r] = true
	}
	return t, errors.Join(err, ruleErr)
}

// anonymous matches the names of the volumes that the engine creates for an image that declares volumes.
var anonymous = regexp.MustCompile(`^[0-9a-f]{64}$`)

// left lists the deployment's remains on the engine and in the engine's network namespace. began is when the test
// started.
func (h *host) left(ctx context.Context, began time.Time, before traces) []string {
	var left []string
	say := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	failed := func(err error) {
		if err != nil {
			say("not known: %v", err)
		}
	}
	containers, err := h.ContainerList(ctx, container.ListOptions{All: true, Filters: h.ours})
	failed(err)
	for _, c := range containers {
		say("container %s (%s)", strings.Join(c.Names, " "), c.Status)
	}
	networks, err := h.NetworkList(ctx, network.ListOptions{Filters: h.ours})
	failed(err)
	for _, n := range networks {
		say("network %s", n.Name)
	}
	volumes, err := h.VolumeList(ctx, volume.ListOptions{Filters: h.ours})
	failed(err)
	for _, v := range volumes.Volumes {
		if v.Name != "boxfleet-host-"+h.deployment { // this volume keeps the host id
			say("volume %s", v.Name)
		}
	}
	unused, err := h.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("dangling", "true"))})
	failed(err)
	for _, v := range unused.Volumes {
		if made, err := time.Parse(time.RFC3339, v.CreatedAt); err == nil && anonymous.MatchString(v.Name) &&
			!made.Before(began.Truncate(time.Second)) {
			say("volume %s, anonymous and without a container, created at %s", v.Name, v.CreatedAt)
		}
	}
	for _, file := range before.namespaces {
		// The engine unmounts a namespace at once and removes the empty file a minute later.
		var stat unix.Statfs_t
		if err := unix.Statfs(file, &stat); err == nil && stat.Type == unix.NSFS_MAGIC {
			say("network namespace %s", file)
		}
	}
	rules, recorded, err := h.rules()
	failed(err)
	for _, r := range rules {
		say("rules for bridge %s", r)
	}
	for _, r := range recorded {
		before.bridges[r] = true
	}
	bridges, err := h.orphanBridges(ctx, before.bridges)
	failed(err)
	for _, b := range bridges {
		say("bridge %s, without a network", b)
	}
	return left
}

// recordedBridges is a set in the deployment's nftables table. The worker records in it the bridges that the worker
// created. Removed bridges stay in the set until the worker next inspects its host.
const recordedBridges = "made"

// rules lists the bridges that appear in the rules of the deployment's table, and the recorded bridges.
func (h *host) rules() (named, recorded []string, err error) {
	file, err := os.Open(h.namespace + "/ns/net")
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(file.Fd())))
	if err != nil {
		return nil, nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, nil, err
	}
	there := false
	for _, c := range chains {
		if c.Table.Name == h.table() {
			there = true
			if strings.HasPrefix(c.Name, firewall.BridgePrefix) {
				named = append(named, c.Name)
			}
		}
	}
	if !there {
		return nil, nil, nil
	}
	sets, err := conn.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: h.table()})
	if err != nil {
		return nil, nil, err
	}
	for _, set := range sets {
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range elements {
			if name := unix.ByteSliceToString(e.Key); set.Name == recordedBridges {
				recorded = append(recorded, name)
			} else {
				named = append(named, name)
			}
		}
	}
	return named, recorded, nil
}

func (h *host) table() string { return "boxfleet-" + h.deployment }

// orphanBridges lists the given bridges that still exist but belong to no network of the engine.
func (h *host) orphanBridges(ctx context.Context, bridges map[string]bool) ([]string, error) {
	interfaces, err := os.ReadFile(h.namespace + "/net/dev")
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for line := range strings.Lines(string(interfaces)) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && bridges[name] {
			there[name] = true
		}
	}
	if len(there) == 0 {
		return nil, nil
	}
	// By now another deployment may have taken the subnet, and with the subnet the name of the bridge.
	networks, err := h.NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		delete(there, n.Options["com.docker.network.bridge.name"])
	}
	var orphans []string
	for name := range there {
		orphans = append(orphans, name)
	}
	return orphans, nil
}

// removeAll removes everything of a deployment from an engine.
func (f remains) removeAll(address, deployment string) {
	h, err := openHost(address, deployment)
	if err != nil {
		return // the test may have stopped the engine for good
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	containers, err := h.ContainerList(ctx, container.ListOptions{All: true, Filters: h.ours})
	if err != nil {
		return
	}
	for _, c := range containers {
		errs = append(errs, h.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	}
	networks, err := h.NetworkList(ctx, network.ListOptions{Filters: h.ours})
	errs = append(errs, err)
	for _, n := range networks {
		errs = append(errs, h.NetworkRemove(ctx, n.ID))
	}
	volumes, err := h.VolumeList(ctx, volume.ListOptions{Filters: h.ours})
	errs = append(errs, err)
	for _, v := range volumes.Volumes {
		errs = append(errs, h.VolumeRemove(ctx, v.Name, false))
	}
	wall := firewall.New(firewall.Config{Deployment: deployment, Engine: h.DaemonHost()})
	defer wall.Close()
	errs = append(errs, wall.Remove())
	for _, err := range errs {
		if err != nil && !cerrdefs.IsNotFound(err) {
			f.TB.Errorf("clean up: %v", err)
		}
	}
}
