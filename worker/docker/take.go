package docker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// Archive writes an image as docker save does, under one name. It calls moved with the bytes of each layer that are
// written.
type Archive func(ctx context.Context, w io.Writer, moved func(layer string, done, total int64)) error

// TakeImage loads an image that the engine does not pull itself, from the archive that open returns, under the name in
// the archive. open returns nil if the engine already has the image. Concurrent calls for the same reference share one
// load, and report is called, as in [Engine.PullImage].
//
// It fails with the errors of open and of the archive, and retries those with reason registry_unreachable. It fails
// with unavailable and image_pull_stalled after [Config.PullStall] without progress, and with image_pull_failed if the
// engine refuses the image.
func (ps *pulls) TakeImage(ctx context.Context, ref string, open func(context.Context) (Archive, error),
	report func(protocol.PullProgress)) error {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return err
	}
	return ps.pullOnce(ctx, full, full, report, func(ctx context.Context, moved *layers) error {
		c := call{verb: "load", kind: kindImage, name: full, limit: transferLimit}
		return ps.do(ctx, c, func(limited context.Context) error {
			moving, p := watchProgress(limited, ps.pullStall)
			defer p.done()
			archive, err := open(moving)
			if err == nil && archive != nil {
				p.moved()
				err = ps.loadArchive(moving, c, archive, func(layer string, done, total int64) {
					if moved.reached(layer, done, total) {
						p.moved()
					}
				}, p.moved)
			}
			if errors.Is(cause(moving, err), errStalled) {
				return ps.stalled(ctx, full)
			}
			return err
		})
	})
}

// loadArchive has the engine load an archive while the archive is written.
func (ps *pulls) loadArchive(ctx context.Context, c call, archive Archive,
	written func(layer string, done, total int64), moved func()) error {
	content, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out.CloseWithError(archive(ctx, out, written))
	}()
	body := &source{moved: moved, r: content}
	answer, err := ps.client.ImageLoad(ctx, body, client.ImageLoadWithQuiet(false))
	if err == nil {
		err = readReport(answer.Body, func(*jsonmessage.JSONMessage) { moved() })
		_ = answer.Body.Close() // read completely
	}
	failed := body.close()
	content.CloseWithError(errors.New("the engine stopped reading"))
	<-ended
	if failed != nil || err == nil {
		return failed
	}
	err = translate(ctx, c, err)
	ps.log.Info("the engine refused an image", "image", c.name, "error", fmt.Sprintf("%.500q", err.Error()))
	return pullError(c.name, err, false)
}

// TagImage gives an image another name; an image that had that name loses it.
func (im *images) TagImage(ctx context.Context, refOrID, name string) error {
	return im.do(ctx, call{verb: "tag", kind: kindImage, name: refOrID, limit: im.changeLimit()},
		func(ctx context.Context) error {
			return im.client.ImageTag(ctx, refOrID, name)
		})
}

// Login are the credentials for a registry in the worker's Docker configuration. The zero value means none.
type Login struct{ Username, Password, IdentityToken, RegistryToken string }

// LoginFor reads the credentials for the registry of a reference. It returns none if they cannot be read.
func (ps *pulls) LoginFor(ctx context.Context, ref string) Login {
	found, err := loginFor(ctx, ps.dockerConfig, registryOf(ref))
	if err != nil {
		ps.log.Warn("could not read the credentials for a registry; trying without", "registry", registryOf(ref),
			"error", err)
		return Login{}
	}
	return Login{found.Username, found.Password, found.IdentityToken, found.RegistryToken}
}
