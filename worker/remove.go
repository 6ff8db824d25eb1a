package worker

import (
	"context"
	"errors"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// stop ends the execs, then the container, and appends that. The container is kept.
func (s *sandbox) stop(ctx context.Context, b *protocol.Sandbox) error {
	if err := s.endAll(ctx, b); err != nil {
		return err
	}
	if s.container.ID != "" {
		s.w.cfg.Probe("before-container-stop")
		if err := s.w.engine.StopContainer(ctx, s.container.ID, time.Second); err != nil {
			return err
		}
		s.w.cfg.Probe("after-container-stop")
	}
	if err := s.stopServices(ctx, b); err != nil {
		return err
	}
	if err := s.lastWords(ctx, b); err != nil {
		return err
	}
	if err := s.forgetDiskStop(b.Generation); err != nil {
		return err
	}
	s.w.cfg.Probe("before-stopped")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Stopped(st, s.ownRun()) })
	s.w.cfg.Probe("after-stopped")
	return err
}

// lastWords lets go of a container that has ended, and waits until the ends of its execs are
// appended; of those too that nobody followed to their end, because the worker was restarted while
// the sandbox was being stopped: their records are on disk.
func (s *sandbox) lastWords(ctx context.Context, b *protocol.Sandbox) error {
	s.detach()
	if err := s.runsEnded(ctx, b.Spec.Grace.Std(), ofAll); err != nil {
		return err
	}
	s.inspection.Container = decide.ContainerExited
	s.allEnded = true
	s.startExecs(ctx)
	s.allEnded = false
	return s.runsEnded(ctx, b.Spec.Grace.Std(), ofAll)
}

// endAll ends the execs, the primary command and the services through the supervisors, TERM, grace,
// KILL, and publishes what the services printed until then. A supervisor that does not answer is passed
// over: the container's end is theirs too.
func (s *sandbox) endAll(ctx context.Context, b *protocol.Sandbox) error {
	s.endServices()
	s.mu.Lock()
	a := s.attached
	s.mu.Unlock()
	grace := b.Spec.Grace.Std()
	if a != nil && !a.end(ctx, grace) {
		return ctx.Err()
	}
	if !s.endInServices(ctx, grace) {
		return ctx.Err()
	}
	if a == nil {
		return nil
	}
	s.awaitOwnEnd(ctx, a)
	return s.runsEnded(ctx, grace, ofAll)
}

// end has the supervisor end everything, and reports whether it did.
func (a *attachment) end(ctx context.Context, grace time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, grace+3*time.Second)
	defer cancel()
	a.ending.Store(true)
	err := a.link.StopAll(bounded, grace)
	if err != nil && ctx.Err() == nil {
		a.s.log.Warn("the supervisor does not end its execs; the container is stopped instead", "error", err)
	}
	return err == nil
}

// Which execs' ends are waited for.
func ofPrimary(r *execRun) bool { return r.service == "" }
func ofAll(*execRun) bool       { return true }

// runsEnded waits until the goroutines of the execs that are meant have appended their ends.
func (s *sandbox) runsEnded(ctx context.Context, within time.Duration, meant func(*execRun) bool) error {
	ctx, cancel := context.WithTimeout(ctx, within+10*time.Second)
	defer cancel()
	s.mu.Lock()
	runs := make([]*execRun, 0, len(s.runs))
	for _, r := range s.runs {
		if meant(r) {
			runs = append(runs, r)
		}
	}
	s.mu.Unlock()
	for _, r := range runs {
		select {
		case <-r.done:
		case <-ctx.Done():
			return protocol.Errorf(protocol.DeadlineExceeded, "", "exec %s does not end", r.id)
		}
	}
	return nil
}

// halt stops a container that should not run, and keeps it.
func (s *sandbox) halt(ctx context.Context, b *protocol.Sandbox) error {
	if s.container.ID != "" {
		if err := s.w.engine.StopContainer(ctx, s.container.ID, b.Spec.Grace.Std()); err != nil {
			return err
		}
	}
	s.detach()
	return s.stopServices(ctx, b)
}

// delete ends the execs, removes everything, and appends that nothing is left.
func (s *sandbox) delete(ctx context.Context, b *protocol.Sandbox) error {
	if err := s.farewell(ctx, b); err != nil {
		return err
	}
	if err := s.endAll(ctx, b); err != nil {
		return err
	}
	if s.container.ID != "" {
		s.w.cfg.Probe("before-container-remove")
		if err := s.w.engine.RemoveContainer(ctx, s.container.ID); err != nil {
			return err
		}
		s.w.cfg.Probe("after-container-remove")
	}
	if err := s.removeServices(ctx, b); err != nil {
		return err
	}
	if err := s.lastWords(ctx, b); err != nil {
		return err
	}
	if err := s.removeRest(ctx); err != nil {
		return err
	}
	s.w.cfg.Probe("before-deleted")
	err := s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event { return decide.Deleted(st, s.ownRun()) })
	s.w.cfg.Probe("after-deleted")
	return err
}

// removeRest removes the network and the directories of a sandbox whose container is gone, and what a
// create that was broken off left. An engine may also have made a container after its answer was no longer
// waited for.
func (s *sandbox) removeRest(ctx context.Context) error {
	containers, err := s.w.containers(ctx)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if k, ok := docker.KeyOf(c.Labels); ok && k == s.key {
			if err := s.w.engine.RemoveContainer(ctx, c.ID); err != nil && !docker.IsNotFound(err) {
				return err
			}
		}
	}
	st, _ := s.journal.State()
	if hostfiles.NeedHome(st.Sandbox.Spec.Tools) {
		if err := s.removePasswd(ctx); err != nil {
			return err
		}
	}
	networks, err := s.w.engine.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range networks {
		if k, ok := docker.KeyOf(n.Labels); ok && k == s.key {
			if err := s.removeLabelled(ctx, networkObject(n)); err != nil {
				return err
			}
		}
	}
	s.w.cfg.Probe("after-network-remove")
	s.mu.Lock()
	s.networkSeen = false
	s.mu.Unlock()
	dirs, err := s.w.dirs.List()
	for _, d := range append(dirs, s.directory(st.Sandbox.Generation)) {
		if d.Key == s.key {
			err = errors.Join(err, d.Remove(ctx))
		}
	}
	return err
}

// discard removes everything that is here of a sandbox which is not this host's: of a generation
// that was assigned elsewhere, or deleted, or never ready. The log is read once more, after the
// host was looked at, and must still say so.
func (s *sandbox) discard(ctx context.Context) error {
	if err := s.journal.Refresh(ctx); err != nil {
		return err
	}
	c, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	st, _ := s.journal.State()
	s.inspection.Generation = docker.GenerationOf(c.Labels)
	if decide.Next(&st.Sandbox, s.w.hostID, s.inspection) != decide.Discard {
		return errSuperseded
	}
	s.log.Info("removing what is not this host's any more", "state", st.Sandbox.State, "container", c.ID, "generation", s.inspection.Generation)
	s.abandonRuns()
	if c.ID != "" {
		if err := s.w.engine.RemoveContainer(ctx, c.ID); err != nil && !docker.IsNotFound(err) {
			return err
		}
	}
	if err := s.removeServices(ctx, &st.Sandbox); err != nil {
		return err
	}
	s.detach()
	return s.removeRest(ctx)
}
