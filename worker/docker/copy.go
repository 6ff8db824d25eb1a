package docker

import (
	"context"
	"io"

	"github.com/docker/docker/api/types/container"
)

// CopyTo unpacks a tar stream into a directory of a container, which need not have been started.
// The directory must exist, else it fails with failed_precondition and reason copy_failed. Owners
// are those in the stream. It ends early when the stream or the engine stands still for
// [Config.StallTimeout]. When reading tar fails, that error is returned; tar is not read any more
// once CopyTo has returned.
func (e *Engine) CopyTo(ctx context.Context, id, dir string, tar io.Reader) error {
	body := &source{r: tar}
	err := e.do(ctx, call{verb: "copy to", kind: kindContainer, name: id, limit: transferLimit}, func(ctx context.Context) error {
		ctx, p := watchProgress(ctx, e.stallTimeout)
		defer p.done()
		body.moved = p.moved
		return cause(ctx, e.client.CopyToContainer(ctx, id, dir, body, container.CopyToContainerOptions{}))
	})
	if readErr := body.close(); readErr != nil {
		return readErr
	}
	return err
}
