package docker

import (
	"context"
	"errors"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// PullAside pulls the image of a reference and inspects it, but does not change which image the engine has under that
// reference. The pulled image gets the given name, which any other image loses. After the pull, the engine may also
// have a reference by digest to the image; PullAside then passes this reference to left. If several callers share the
// pull, only one of them gets the reference. PullAside reports progress and returns errors like [Engine.PullImage].
func (ps *pulls) PullAside(ctx context.Context, ref, as string, left func(ref string),
	report func(protocol.PullProgress)) (Image, error) {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return Image{}, err
	}
	err = ps.pullOnce(ctx, full, as, report, func(ctx context.Context, moved *layers) error {
		// The next request only reads, so the fence would let it pass. Without the lock there is no reason to send it.
		if err := ps.fence(); err != nil {
			return err
		}
		found, err := ps.digestIn(ctx, full)
		if err != nil {
			return err
		}
		if _, err = ps.images.FindImage(ctx, found); errors.Is(err, ErrImageNotFound) {
			if err = ps.pull(ctx, found, moved); err == nil {
				left(found)
			}
		}
		if err == nil {
			err = ps.images.TagImage(ctx, found, as)
		}
		return err
	})
	if err != nil {
		return Image{}, err
	}
	return ps.images.findImage(ctx, as, full)
}

// digestIn asks the registry for the present digest of a reference, and returns the reference with that digest.
func (ps *pulls) digestIn(ctx context.Context, full string) (string, error) {
	auth, known := ps.credentials(ctx, registryOf(full))
	c := call{verb: "ask for", kind: kindImage, name: full, limit: ps.pullStall}
	found := ""
	err := ps.do(ctx, c, func(limited context.Context) error {
		got, err := ps.client.DistributionInspect(limited, full, auth)
		if err != nil {
			return ps.pullFailed(ctx, full, translate(ctx, c, err), known)
		}
		found, err = imageref.ByDigest(full, got.Descriptor.Digest.String())
		return err
	})
	return found, err
}
