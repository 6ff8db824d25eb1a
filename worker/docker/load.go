package docker

import (
	"context"
	"io"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/jsonmessage"
)

// LoadImage loads the images of an archive under the names in the archive. The archive is in the format of docker save.
// An error from reading the archive is returned unchanged. LoadImage fails with unavailable and reason engine_error if
// the engine refuses the archive, and with [ErrEngineUnavailable] after [Config.PullStall] without progress.
func (im *images) LoadImage(ctx context.Context, archive io.Reader) error {
	return im.take(ctx, "load", "", archive, func(ctx context.Context, body io.Reader) (io.ReadCloser, error) {
		answer, err := im.client.ImageLoad(ctx, body, client.ImageLoadWithQuiet(false))
		return answer.Body, err
	})
}

// ImportImage creates an image named ref from a tar stream with a root file system. The parameter changes has
// Dockerfile instructions such as `ENV A=1`. ImportImage returns the errors of [Engine.LoadImage].
func (im *images) ImportImage(ctx context.Context, root io.Reader, ref string, changes []string) error {
	return im.take(ctx, "import", ref, root, func(ctx context.Context, body io.Reader) (io.ReadCloser, error) {
		return im.client.ImageImport(ctx, image.ImportSource{Source: body, SourceName: "-"}, ref,
			image.ImportOptions{Changes: changes})
	})
}

// take sends content to the engine and reads the engine's report.
func (im *images) take(ctx context.Context, verb, ref string, content io.Reader,
	send func(context.Context, io.Reader) (io.ReadCloser, error)) error {
	c := call{verb: verb, kind: kindImage, name: ref, limit: transferLimit}
	return im.do(ctx, c, func(limited context.Context) error {
		moving, p := watchProgress(limited, im.pullStall)
		defer p.done()
		body := &source{moved: p.moved, r: content}
		answer, err := send(moving, body)
		if err == nil {
			defer answer.Close()
			err = readReport(answer, func(*jsonmessage.JSONMessage) { p.moved() })
		}
		if failed := body.close(); failed != nil {
			return failed
		}
		return cause(moving, err)
	})
}
