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

// Archive writes an image with one name, in the format of docker save. While it writes a layer, it calls moved with the
// number of bytes of that layer written so far.
type Archive func(ctx context.Context, w io.Writer, moved func(layer string, done, total int64)) error

// TakeImage loads an image from an archive, under the name in the archive. Callers use it for images that the engine
// does not pull itself. The function open returns the archive, or nil if the engine already has the image. As in
// [Engine.PullImage], concurrent calls for the same reference share one load, and TakeImage calls report during the
// load.
//
// TakeImage returns the errors of open and of the archive. After an error with reason registry_unreachable, it tries
// again several times before it returns the error. It fails with unavailable and reason image_pull_stalled after
// [Config.PullStall] without progress, and with reason image_pull_failed if the engine refuses the image.
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

// loadArchive writes an archive, and sends it to the engine at the same time.
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
		_ = answer.Body.Close() // readReport has returned the result already
	}
	failed := body.close()
	content.CloseWithError(errors.New("the engine stopped reading"))
	<-ended
	if failed != nil || err == nil {
		return failed
	}
	err = translate(ctx, c, err)
	ps.log.Info("the Docker engine refused to load an image", "image", c.name,
		"error", fmt.Sprintf("%.500q", err.Error()))
	return pullError(c.name, err, false)
}

// TagImage gives an image an additional name. An image that had this name before loses it.
func (im *images) TagImage(ctx context.Context, refOrID, name string) error {
	return im.do(ctx, call{verb: "tag", kind: kindImage, name: refOrID, limit: im.changeLimit()},
		func(ctx context.Context) error {
			return im.client.ImageTag(ctx, refOrID, name)
		})
}

// Login has the credentials for a registry. The zero value means no credentials.
type Login struct{ Username, Password, IdentityToken, RegistryToken string }

// LoginFor reads the credentials for the registry of a reference from the worker's Docker configuration. It returns the
// zero value if the credentials cannot be read.
func (ps *pulls) LoginFor(ctx context.Context, ref string) Login {
	found, err := loginFor(ctx, ps.dockerConfig, registryOf(ref))
	if err != nil {
		ps.log.Warn("could not read the credentials for a registry; continuing without credentials", "registry",
			registryOf(ref), "error", err)
		return Login{}
	}
	return Login{found.Username, found.Password, found.IdentityToken, found.RegistryToken}
}
