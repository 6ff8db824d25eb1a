package sandbox

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// delete runs the on_delete hook, ends the execs, removes everything of the sandbox from the host, and appends
// sandbox.deleted.
func (t *teardown) delete(ctx context.Context) error {
	s, b := t.s, t.b
	if err := t.runOnDelete(ctx); err != nil {
		return err
	}
	if err := t.endAll(ctx); err != nil {
		return err
	}
	if id := s.local.container.ID; id != "" {
		s.host.Probe("before-container-remove")
		if err := s.host.Engine.RemoveContainer(ctx, id); err != nil {
			return err
		}
		s.host.Probe("after-container-remove")
	}
	if err := s.services.remove(ctx, b); err != nil {
		return err
	}
	if err := t.finishExecs(ctx); err != nil {
		return err
	}
	if err := t.removeRest(ctx); err != nil {
		return err
	}
	s.host.Probe("before-deleted")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Deleted(st, s.conn.ownRun())
	})
	s.host.Probe("after-deleted")
	return err
}

// removeRest removes the networks and directories of a sandbox, after its known containers were removed. It also
// removes containers that an interrupted create left, because the engine may have made a container after the worker
// stopped waiting for the engine's answer.
func (t *teardown) removeRest(ctx context.Context) error {
	s := t.s
	containers, err := s.host.Owned.Containers(ctx)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if k, ok := docker.KeyOf(c.Labels); ok && k == s.key {
			if err := s.host.Engine.RemoveContainer(ctx, c.ID); err != nil && !docker.IsNotFound(err) {
				return err
			}
		}
	}
	st, _ := s.journal.State()
	if hostfiles.NeedHome(st.Sandbox.Spec.Tools) {
		if err := removePasswdContainer(ctx, s); err != nil {
			return err
		}
	}
	if err := t.removeNetworks(ctx); err != nil {
		return err
	}
	dirs, err := s.host.Dirs.List()
	for _, d := range append(dirs, s.dir(st.Sandbox.Generation)) {
		if d.Key == s.key {
			err = errors.Join(err, d.Remove(ctx))
		}
	}
	return err
}

func (t *teardown) removeNetworks(ctx context.Context) error {
	s := t.s
	networks, err := s.host.Engine.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range networks {
		if k, ok := docker.KeyOf(n.Labels); ok && k == s.key {
			if err := removeObject(ctx, s, networkObject(n)); err != nil {
				return err
			}
		}
	}
	s.host.Probe("after-network-remove")
	s.mu.Lock()
	s.network = false
	s.mu.Unlock()
	return nil
}

// discard removes everything of a sandbox that should not be on this host. Such a sandbox was deleted, was assigned to
// another host or in a later generation, or failed before it was ready. discard first reads the log and inspects the
// container again, and removes nothing if decide.Next no longer returns Discard.
func (t *teardown) discard(ctx context.Context) error {
	s := t.s
	if err := s.journal.Refresh(ctx); err != nil {
		return err
	}
	c, err := s.containers().Inspect(ctx, s.name())
	if err != nil {
		return err
	}
	st, _ := s.journal.State()
	s.local.Generation = docker.GenerationOf(c.Labels)
	if decide.Next(&st.Sandbox, s.host.ID, s.local.Inspection) != decide.Discard {
		return decide.ErrSuperseded
	}
	s.log.Info("removing a sandbox that no longer belongs on this host", "state", st.Sandbox.State,
		"container", c.ID, "generation", s.local.Generation)
	s.execs.Abandon()
	if c.ID != "" {
		if err := s.host.Engine.RemoveContainer(ctx, c.ID); err != nil && !docker.IsNotFound(err) {
			return err
		}
	}
	if err := s.services.remove(ctx, &st.Sandbox); err != nil {
		return err
	}
	s.conn.detach()
	return t.removeRest(ctx)
}
