package docker

import (
	"context"
	"strings"
	"sync"
)

// maxImageLabels is the maximum number of images in the cache. A full cache is cleared.
const maxImageLabels = 10_000

// imageLabels remembers which images have Boxfleet labels.
type imageLabels struct {
	*connection

	mu    sync.Mutex
	known map[string]bool // by image id: whether the image has Boxfleet labels
}

// labelsOf reports whether the image with an id has Boxfleet labels. labelsOf also returns true for an image that no
// longer exists. The labels of an image id never change, so labelsOf asks the engine only once about each image.
func (il *imageLabels) labelsOf(ctx context.Context, image string) (has bool, err error) {
	il.mu.Lock()
	has, known := il.known[image]
	il.mu.Unlock()
	if known {
		return has, nil
	}
	got, err := il.client.ImageInspect(ctx, image)
	if err != nil && (ctx.Err() != nil || unanswered(err)) {
		return true, err
	}
	if err != nil { // the image is gone or broken
		return true, nil
	}
	if got.Config != nil {
		for name := range got.Config.Labels {
			has = has || strings.HasPrefix(name, labelPrefix)
		}
	}
	il.mu.Lock()
	defer il.mu.Unlock()
	if len(il.known) >= maxImageLabels {
		clear(il.known)
	}
	il.known[image] = has
	return has, nil
}
