package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/images"
	"github.com/boxfleet/boxfleet/worker/network"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/removal"
	"github.com/boxfleet/boxfleet/worker/sandbox"
	"github.com/boxfleet/boxfleet/worker/secrets"
	"github.com/boxfleet/boxfleet/worker/service"
	"github.com/boxfleet/boxfleet/worker/treecopy"
)

// identify connects to the engine and reads the host's id from it.
func (w *worker) identify(ctx context.Context) error {
	cfg := docker.Config{Host: w.cfg.Engine, Deployment: w.conn.Deployment(), Fence: docker.Unfenced, Logger: w.log,
		PullStall: w.cfg.Images.PullStall, DockerConfig: w.cfg.Images.DockerConfig}
	marker, err := docker.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer marker.Close()
	if w.hostID, err = marker.HostID(ctx); err != nil {
		return err
	}
	if w.cfg.OnHost != nil {
		if err := w.cfg.OnHost(ctx, w.hostID); err != nil {
			return err
		}
	}
	cfg.Fence = w.lock.fence
	if hostfiles.CanVerify() { // only root can reach the files of containers
		cfg.EmptyLayer = removal.Contents
	}
	if w.engine, err = docker.Connect(ctx, cfg); err != nil {
		return err
	}
	w.address = w.engine.Address()
	w.output = output.New(output.Config{
		Conn: w.conn, HostID: w.hostID, Burst: w.cfg.OutputBurst, Rate: w.cfg.OutputRate,
		Patience: w.cfg.OutputPatience, After: w.cfg.OutputWithin, Probe: w.cfg.Probe,
	})
	w.dir = filepath.Join(w.deploymentDir(), w.hostID)
	w.owned = ownership{engine: w.engine, deployment: w.conn.Deployment(), stateDir: w.cfg.StateDir}
	w.images = images.New(images.Options{
		Config: w.cfg.Images, Deployment: w.conn.Deployment(), Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance,
		Dir: w.dir, DenyNetworks: w.cfg.DenyNetworks, Engine: w.engine, Log: w.conn, Recovered: w.recovery.Next,
		Logger: w.log,
	})
	return nil
}

// deploymentDir returns the directory that contains the directories of the deployment's hosts.
func (w *worker) deploymentDir() string { return filepath.Join(w.cfg.StateDir, w.conn.Deployment()) }

// dirs returns the directories of the sandboxes on this host.
func (w *worker) dirs() hostdir.Root { return hostdir.In(w.dir) }

// prepare prepares everything that all sandboxes share. It reads and writes the worker's files while the engine
// describes itself, which takes 10 ms.
func (w *worker) prepare(ctx context.Context) error {
	copied := make(chan error, 1)
	go func() {
		w.images.Load()
		copied <- w.copySupervisor()
	}()
	err := w.preparePolicy(ctx)
	return cmp.Or(err, <-copied)
}

// preparePolicy determines what the host offers and allows.
func (w *worker) preparePolicy(ctx context.Context) error {
	var err error
	if w.info, err = w.engine.Info(ctx); err != nil {
		return err
	}
	if w.files.Mounts, err = hostfiles.NewPolicy(w.cfg.AllowMounts, w.hidden()); err != nil {
		return err
	}
	if w.files.Tools, err = hostfiles.NewToolbox(w.cfg.Tools, w.cfg.ToolsHome, w.cfg.SSHAgent,
		w.files.Mounts); err != nil {
		return err
	}
	if w.abilities, err = abilities.New(abilities.Config{
		Profiles: w.cfg.Profiles, ServiceProfiles: w.cfg.ServiceProfiles, Runtimes: w.cfg.Runtimes, PIDs: w.cfg.PIDs,
	}, w.info); err != nil {
		return err
	}
	w.gpus = abilities.NewGPUs(w.abilities.GPUs)
	if w.subnets, err = network.NewSubnets(w.cfg.NetworkPool); err != nil {
		return err
	}
	if w.ports, err = protocol.ParsePortRange("ports", w.cfg.Ports); err != nil {
		return err
	}
	if w.isolation, err = network.New(network.Config{
		Deployment: w.conn.Deployment(), EngineAddress: w.engine.Address(), Engine: w.engine, Subnets: w.subnets,
		Firewall: w.cfg.Firewall, DenyNetworks: w.cfg.DenyNetworks, AllowNetworks: w.cfg.AllowNetworks, DNS: w.cfg.DNS,
		Connections: w.cfg.Connections, Fence: w.lock.fence, Reconcile: w.cfg.Reconcile, ReapDryRun: w.cfg.ReapDryRun,
		Logger: w.log,
	}); err != nil {
		return err
	}
	if err = w.checkDefaults(); err != nil {
		return err
	}
	return w.isolation.RefreshSubnets(ctx)
}

// hidden returns the paths that no sandbox may mount on this host, in addition to the paths that are hidden on every
// host.
func (w *worker) hidden() []string {
	hidden := []string{w.cfg.StateDir}
	for _, path := range append([]string{w.info.RootDir, strings.TrimPrefix(w.address, "unix://")}, w.cfg.Hidden...) {
		if filepath.IsAbs(path) {
			hidden = append(hidden, path)
		}
	}
	return hidden
}

// copySupervisor copies the supervisor's binary into the worker's directory. Containers mount the copy, so an upgrade
// of the installed binary does not change the supervisor of running containers.
func (w *worker) copySupervisor() error {
	data, err := os.ReadFile(w.cfg.Supervisor)
	if err != nil {
		return protocol.Invalid("supervisor", "%v", err)
	}
	sum := sha256.Sum256(data)
	w.supervisor = filepath.Join(w.dir, "supervisor-"+hex.EncodeToString(sum[:8]))
	if info, err := os.Stat(w.supervisor); err == nil && info.Size() == int64(len(data)) {
		return nil
	}
	unfinished := w.supervisor + ".tmp"
	if err := errors.Join(os.WriteFile(unfinished, data, 0o555), os.Rename(unfinished, w.supervisor)); err != nil {
		return hosterr.Wrap(err, "copy the supervisor")
	}
	return nil
}

// sandboxHost returns the parts of this worker and its host that sandboxes use.
func (w *worker) sandboxHost() *sandbox.Host {
	return &sandbox.Host{
		Host: service.Host{
			ID: w.hostID, Deployment: w.conn.Deployment(), Engine: w.engine, Epoch: &w.epoch, Recovery: &w.recovery,
			Supervisor: w.supervisor, Now: w.conn.Now, Fence: w.lock.fence, Lease: w.lock.trusted, Probe: w.cfg.Probe,
			CrashWindow: w.cfg.CrashWindow, CrashGuard: w.cfg.CrashGuard, NameServers: w.isolation.NameServers,
			LimitTerminals: w.limitTerminals, CheckService: w.abilities.CheckService, Track: w.disk.Track,
			Unseal: secrets.NewAsker(w.conn.Unseal),
		},
		Conn: w.conn, Worker: w.cfg.Name, Token: w.lock.token, Runtime: w.info.Runtime, DryRun: w.cfg.ReapDryRun,
		Dirs: w.dirs(), Files: w.files, Homes: &hostfiles.Homes{}, Images: w.images,
		Network: w.isolation, Subnets: w.subnets, Ports: w.ports, Output: w.output,
		Trees: treecopy.Copier{Engine: w.engine, Uploads: w.conn, Disk: w.disk},
		Check: w.abilities.Check, GPUs: w.gpus, Admission: admission{w}, Owned: w.owned,
		Listening: w.listening.times.Load, Settled: w.settled,
	}
}

// settled records that the host matches the log for one sandbox.
func (w *worker) settled(k protocol.SandboxKey) {
	if w.initial.settled(k) { // it was the last one that the initial inspection waited for: tell coordinators at once
		w.listening.beat.Wake()
		w.changed.Wake()
	}
}
