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

// CopyTo unpacks a tar stream into a directory of a container, and keeps the owners that the stream names. The
// container need not have been started. CopyTo fails with failed_precondition and reason copy_failed if the directory
// does not exist, and with [ErrEngineUnavailable] if the transfer makes no progress for [Config.StallTimeout]. If the
// stream cannot be read, CopyTo returns the reader's error unchanged. CopyTo does not read from the stream after it has
// returned.
func (cs *containers) CopyTo(ctx context.Context, id, dir string, tar io.Reader) error {
	body := &source{r: tar}
	err := cs.do(ctx, call{verb: "copy to", kind: kindContainer, name: id, limit: transferLimit},
		func(ctx context.Context) error {
			ctx, p := watchProgress(ctx, cs.stallTimeout)
			defer p.done()
			body.moved = p.moved
			return cause(ctx, cs.client.CopyToContainer(ctx, id, dir, body, container.CopyToContainerOptions{}))
		})
	if readErr := body.close(); readErr != nil {
		return readErr
	}
	return err
}

// PathMode returns the mode of a path in a container. The container need not have been started. If the path is a
// symbolic link, PathMode returns the link's mode. The second result is false if nothing exists at the path. PathMode
// fails if a parent of the path is not a directory.
func (cs *containers) PathMode(ctx context.Context, id, path string) (mode fs.FileMode, there bool, err error) {
	err = cs.do(ctx, call{verb: "read from", kind: kindContainer, name: id, limit: cs.readLimit()},
		func(ctx context.Context) error {
			stat, err := cs.client.ContainerStatPath(ctx, id, path)
			mode, there = stat.Mode, err == nil
			if cerrdefs.IsNotFound(err) && !denials[kindContainer].MatchString(err.Error()) {
				return nil
			}
			return err
		})
	return mode, there, err
}

// ReadFile reads the beginning of a file in a container. The last parameter is the maximum number of bytes. The
// container need not have been started. ReadFile returns nil if the path does not exist or is not a regular file.
func (cs *containers) ReadFile(ctx context.Context, id, path string, most int64) ([]byte, error) {
	var data []byte
	err := cs.do(ctx, call{verb: "read from", kind: kindContainer, name: id, limit: cs.readLimit()},
		func(ctx context.Context) error {
			content, _, err := cs.client.CopyFromContainer(ctx, id, path)
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

// copyRefused matches the engine's errors for a tar stream that cannot be unpacked into its target directory.
var copyRefused = regexp.MustCompile(`(?i)cannot overwrite|not a directory|is a directory|file exists|read-only|` +
	`no space left|quota exceeded|too many levels|device or resource busy|file name too long|too many links|` +
	`link .*(no such file or directory|cross-device)`)
