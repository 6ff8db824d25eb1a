package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/firewall"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// Remains is everything that the workers of one deployment leave on a host when they end. It must be closed.
type Remains struct {
	Deployment string
	Dir        string // the deployment's directory, below the workers' state directory

	locks    []*os.File
	engine   *docker.Engine
	firewall *firewall.Firewall // nil: the operator has turned the firewall off
}

// FindRemains returns the remains of each deployment that has a directory in cfg.StateDir. It uses the fields StateDir,
// Engine, Firewall and Logger of cfg, and changes nothing. It needs no NATS, so it does not notice a worker on another
// machine that uses the same engine.
//
// Errors: failed_precondition with reason host_held if a worker runs, failed_precondition if the engine has containers
// of a deployment, and the errors of the engine.
func FindRemains(ctx context.Context, cfg Config) (found []*Remains, err error) {
	cfg.setDefaults()
	defer func() {
		if err != nil {
			for _, r := range found {
				r.Close()
			}
			found = nil
		}
	}()
	locks, err := filepath.Glob(filepath.Join(cfg.StateDir, "*", "*", "lock"))
	if err != nil {
		return nil, hosterr.Wrap(err, "list the deployments in the state directory")
	}
	for _, path := range locks {
		dir := filepath.Dir(filepath.Dir(path))
		if len(found) == 0 || found[len(found)-1].Dir != dir {
			found = append(found, &Remains{Deployment: filepath.Base(dir), Dir: dir})
		}
		if err := found[len(found)-1].lock(path); err != nil {
			return found, err
		}
	}
	for _, r := range found {
		if err := r.inspect(ctx, cfg); err != nil {
			return found, err
		}
	}
	return found, nil
}

// lock takes the local lock of a host, so that no worker starts meanwhile.
func (r *Remains) lock(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return hosterr.Wrap(err, "open the lock file")
	}
	r.locks = append(r.locks, f)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
			"a worker of deployment %s runs on this machine: stop it first", r.Deployment)
	}
	return nil
}

// inspect connects to the engine, and refuses a deployment that has containers there.
func (r *Remains) inspect(ctx context.Context, cfg Config) error {
	var err error
	r.engine, err = docker.Connect(ctx, docker.Config{Host: cfg.Engine, Deployment: r.Deployment, Fence: docker.Unfenced,
		Logger: cfg.Logger})
	if err != nil {
		return err
	}
	containers, err := r.engine.Containers(ctx)
	if err != nil {
		return err
	}
	if len(containers) > 0 {
		names := make([]string, 0, len(containers))
		for _, c := range containers {
			names = append(names, c.Name)
		}
		return protocol.Errorf(protocol.FailedPrecondition, "", "the engine has containers of sandboxes of deployment %s: "+
			"start the worker and delete these sandboxes, or remove the containers yourself: %s", r.Deployment,
			strings.Join(names, ", "))
	}
	if cfg.Firewall != protocol.FirewallOff {
		r.firewall = firewall.New(firewall.Config{Deployment: r.Deployment, Engine: r.engine.Address(), Logger: cfg.Logger})
	}
	return nil
}

// String says what Remove removes.
func (r *Remains) String() string {
	return fmt.Sprintf("the host's id, the networks and the firewall rules of deployment %s, and the directory %s",
		r.Deployment, r.Dir)
}

// Remove removes the remains. The directory goes last, so after an error another Remove can complete the work.
func (r *Remains) Remove(ctx context.Context) error {
	networks, err := r.engine.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range networks {
		if err := r.engine.RemoveNetwork(ctx, n.Name); err != nil {
			return err
		}
	}
	if r.firewall != nil {
		if err := r.firewall.Remove(); err != nil {
			return err
		}
	}
	if err := r.engine.RemoveHostID(ctx); err != nil {
		return err
	}
	if err := removal.Tree(ctx, r.Dir); err != nil {
		return err
	}
	// The state directory goes with its last deployment, unless it has files of others.
	err = os.Remove(filepath.Dir(r.Dir))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return hosterr.Wrap(err, "remove the state directory")
	}
	return nil
}

// Close releases the locks.
func (r *Remains) Close() {
	if r.firewall != nil {
		r.firewall.Close()
	}
	for _, f := range r.locks {
		_ = f.Close() // nothing was written to it
	}
	if r.engine != nil {
		r.engine.Close()
	}
}
