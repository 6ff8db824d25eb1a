package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/protocol"
)

// Image is what an image says of itself.
type Image struct {
	ID           string
	User         string
	Env          []string
	Cwd          string
	Entrypoint   []string
	Cmd          []string
	Size         int64 // bytes
	OS           string
	Architecture string
}

// Image reads an image, and pulls it first when the engine does not have it. The same reference is
// pulled once at a time, whoever asks. It fails with [ErrImageNotFound] when no registry has it, and
// with unavailable and reason image_pull_failed when the pull fails, or stands still for
// [Config.StallTimeout].
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	img, err := e.inspectImage(ctx, ref)
	if !errors.Is(err, ErrImageNotFound) {
		return img, err
	}
	if err := e.pullOnce(ctx, ref); err != nil {
		return Image{}, err
	}
	return e.inspectImage(ctx, ref)
}

func (e *Engine) inspectImage(ctx context.Context, ref string) (Image, error) {
	var img Image
	err := e.do(ctx, call{verb: "inspect", kind: kindImage, name: ref, limit: e.readLimit()}, func(ctx context.Context) error {
		got, err := e.client.ImageInspect(ctx, ref)
		if err != nil {
			return err
		}
		img = Image{ID: got.ID, Size: got.Size, OS: got.Os, Architecture: got.Architecture}
		if c := got.Config; c != nil {
			img.User, img.Env, img.Cwd, img.Entrypoint, img.Cmd = c.User, c.Env, c.WorkingDir, c.Entrypoint, c.Cmd
		}
		return nil
	})
	return img, err
}

// pull is one that runs. The rest may be read when done is closed.
type pull struct {
	done      chan struct{}
	err       error
	abandoned bool // its caller went away: the error says nothing about the image
}

// pullOnce pulls ref, or waits for the pull that runs already and shares its result.
func (e *Engine) pullOnce(ctx context.Context, ref string) error {
	for {
		p, mine := e.joinPull(ref)
		if mine {
			p.err = e.pull(ctx, ref)
			p.abandoned = ctx.Err() != nil
			e.mu.Lock()
			delete(e.pulls, ref)
			e.mu.Unlock()
			close(p.done)
			return p.err
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return translate(ctx, call{verb: "pull", kind: kindImage, name: ref, limit: transferLimit}, ctx.Err())
		}
		if !p.abandoned {
			return p.err
		}
	}
}

// joinPull returns the running pull of ref, or a new one that is the caller's to run.
func (e *Engine) joinPull(ref string) (p *pull, mine bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pulls[ref]; p != nil {
		return p, false
	}
	p = &pull{done: make(chan struct{})}
	e.pulls[ref] = p
	return p, true
}

// pull asks the engine to pull and reads its report to the end; only then is the image there.
func (e *Engine) pull(ctx context.Context, ref string) error {
	if _, err := reference.ParseNormalizedNamed(ref); err != nil {
		return protocol.Invalid("spec.image", "is not an image reference: %.80q", ref)
	}
	c := call{verb: "pull", kind: kindImage, name: ref, limit: transferLimit}
	return e.do(ctx, c, func(limited context.Context) error {
		moving, p := watchProgress(limited, e.stallTimeout)
		defer p.done()
		report, err := e.client.ImagePull(moving, ref, image.PullOptions{})
		if err == nil {
			defer report.Close()
			err = readPull(report, p.moved)
		}
		return pullError(translate(ctx, c, cause(moving, err)))
	})
}

// readPull reads a pull's report, which says in its midst when the pull failed.
func readPull(report io.Reader, moved func()) error {
	decoder := json.NewDecoder(report)
	for {
		var message jsonmessage.JSONMessage
		if err := decoder.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if message.Error != nil {
			return message.Error
		}
		moved()
	}
}

// noSuchImage are the words with which a registry says that it has no such image, or shows none to
// somebody without credentials, which it does not tell apart.
var noSuchImage = regexp.MustCompile(`(?i)manifest unknown|manifest for .* not found|name unknown|` +
	`repository .*not (found|exist)|repository does not exist|pull access denied|no matching manifest`)

// pullError says of a failed pull whether the image is not there, or the registry. An engine that
// failed to pull is not an engine that failed.
func pullError(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Code == protocol.Cancelled, e.Code == protocol.InvalidArgument && !noSuchImage.MatchString(e.Message):
		return err
	case e.Reason == protocol.ReasonImageNotFound, noSuchImage.MatchString(e.Message):
		return protocol.Errorf(protocol.NotFound, protocol.ReasonImageNotFound, "%s", e.Message)
	case e.Reason == protocol.ReasonEngineUnavailable:
		return err
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonImagePullFailed, "%s", e.Message)
}
