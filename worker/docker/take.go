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

// Archive writes an image as docker save does, under one name, and tells of each layer how many of its
// bytes are written.
type Archive func(ctx context.Context, w io.Writer, moved func(layer string, done, total int64)) error

// TakeImage gives the engine an image that it does not pull itself: of the registry that open reads,
// under the name that its archive has. Who asks for the same reference meanwhile waits, and report hears,
// as with [Engine.PullImage]. An archive that open returns as nil is of an image that the engine has.
//
// It fails with what open and the archive fail with, which is tried again where it is
// registry_unreachable; with unavailable and image_pull_stalled after [Config.PullStall] without progress,
// and image_pull_failed where the engine does not take the image.
func (e *Engine) TakeImage(ctx context.Context, ref string, open func(context.Context) (Archive, error), report func(protocol.PullProgress)) error {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return err
	}
	return e.pullOnce(ctx, full, full, report, func(ctx context.Context, moved *layers) error {
		c := call{verb: "load", kind: kindImage, name: full, limit: transferLimit}
		return e.do(ctx, c, func(limited context.Context) error {
			moving, p := watchProgress(limited, e.pullStall)
			defer p.done()
			archive, err := open(moving)
			if err == nil && archive != nil {
				p.moved()
				err = e.loadArchive(moving, c, archive, func(layer string, done, total int64) {
					if moved.reached(layer, done, total) {
						p.moved()
					}
				}, p.moved)
			}
			if errors.Is(cause(moving, err), errStalled) {
				return e.stalled(ctx, full)
			}
			return err
		})
	})
}

// loadArchive has the engine load an archive while it is written.
func (e *Engine) loadArchive(ctx context.Context, c call, archive Archive, written func(layer string, done, total int64), moved func()) error {
	content, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out.CloseWithError(archive(ctx, out, written))
	}()
	body := &source{moved: moved, r: content}
	answer, err := e.client.ImageLoad(ctx, body, client.ImageLoadWithQuiet(false))
	if err == nil {
		err = readReport(answer.Body, func(*jsonmessage.JSONMessage) { moved() })
		_ = answer.Body.Close() // it was read
	}
	failed := body.close()
	content.CloseWithError(errors.New("the engine stopped reading"))
	<-ended
	if failed != nil || err == nil {
		return failed
	}
	err = translate(ctx, c, err)
	e.log.Info("the engine did not take an image", "image", c.name, "error", fmt.Sprintf("%.500q", err.Error()))
	return pullError(c.name, err, false)
}

// TagImage gives an image one more name, and takes that name from any other image.
func (e *Engine) TagImage(ctx context.Context, refOrID, name string) error {
	return e.do(ctx, call{verb: "tag", kind: kindImage, name: refOrID, limit: e.changeLimit()}, func(ctx context.Context) error {
		return e.client.ImageTag(ctx, refOrID, name)
	})
}

// Login is what the worker's Docker configuration has for a registry; the zero value is nothing.
type Login struct{ Username, Password, IdentityToken, RegistryToken string }

// LoginFor reads the credentials for the registry of a reference; nothing where they cannot be read.
func (e *Engine) LoginFor(ctx context.Context, ref string) Login {
	found, err := loginFor(ctx, e.dockerConfig, registryOf(ref))
	if err != nil {
		e.log.Warn("the credentials for a registry cannot be read; trying without", "registry", registryOf(ref), "error", err)
		return Login{}
	}
	return Login{found.Username, found.Password, found.IdentityToken, found.RegistryToken}
}
