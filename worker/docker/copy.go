package docker

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"regexp"

	cerrdefs "github.com/containerd/errdefs"
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

// PathMode says what is at a path of a container, which need not have been started; a link is a
// link. there is false where nothing is. What is above the path must be directories.
func (e *Engine) PathMode(ctx context.Context, id, path string) (mode fs.FileMode, there bool, err error) {
	err = e.do(ctx, call{verb: "look into", kind: kindContainer, name: id, limit: e.readLimit()}, func(ctx context.Context) error {
		stat, err := e.client.ContainerStatPath(ctx, id, path)
		mode, there = stat.Mode, err == nil
		if cerrdefs.IsNotFound(err) && !denials[kindContainer].MatchString(err.Error()) {
			return nil
		}
		return err
	})
	return mode, there, err
}

// ReadFile reads a small file of a container, which need not have been started: nothing where there is
// no such file, or it is none.
func (e *Engine) ReadFile(ctx context.Context, id, path string, most int64) ([]byte, error) {
	var data []byte
	err := e.do(ctx, call{verb: "look into", kind: kindContainer, name: id, limit: e.readLimit()}, func(ctx context.Context) error {
		content, _, err := e.client.CopyFromContainer(ctx, id, path)
		if cerrdefs.IsNotFound(err) && !denials[kindContainer].MatchString(err.Error()) {
			return nil
		}
		if err != nil {
			return err
		}
		defer content.Close()
		r := tar.NewReader(content)
		h, err := r.Next()
		if err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		data, err = io.ReadAll(io.LimitReader(r, most))
		return err
	})
	return data, err
}

// copyRefused are the engine's words for a stream that cannot be unpacked where it should be.
var copyRefused = regexp.MustCompile(`(?i)cannot overwrite|not a directory|is a directory|file exists|read-only|no space left|quota exceeded|too many levels|device or resource busy|file name too long|too many links|link .*(no such file or directory|cross-device)`)
