package worker

import (
	"cmp"
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/images"
)

// Images is the part of a worker's configuration that is about images.
type Images = images.Config

// newImages makes the manager of the host's images.
func newImages(w *worker) *images.Images {
	return images.New(images.Options{
		Config: w.cfg.Images, Deployment: w.conn.Deployment(), Worker: w.cfg.Name, HostID: w.hostID, Instance: w.instance,
		Dir: w.dir, DenyNetworks: w.cfg.DenyNetworks, Engine: w.engine, Log: w.conn, Recovered: w.recovery.next,
		Logger: w.log,
	})
}

// image gets an image for a container of the sandbox, and appends the progress of a pull. The caller calls release once
// the container exists: from then on the container keeps the image.
func (s *sandbox) image(ctx context.Context, generation uint64, ref, policy string) (
	_ docker.Image, release func(), err error) {
	return s.w.images.Get(ctx, ref, policy, func(p protocol.PullProgress) {
		b := &protocol.Sandbox{Generation: generation}
		err := s.afterPhases(ctx, b, func(st *protocol.State) []protocol.Event {
			if st.Sandbox.State != protocol.StatePending { // an optional service may be created later
				return nil
			}
			phase := cmp.Or(s.phasesOf(b).Current(), st.Sandbox.Phase, "image")
			return []protocol.Event{{Kind: protocol.SandboxPreparing, Phase: &protocol.SandboxDetails{Phase: phase, Pull: &p}}}
		})
		if err != nil && !errors.Is(err, errSuperseded) && ctx.Err() == nil {
			s.log.Warn("could not append the progress of a pull", "image", p.Image, "error", err)
		}
	})
}
