package docker

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// Image describes an image.
type Image struct {
	ID           string
	Digest       string   // the digest in the registry of the requested reference; "" if the image came from no registry
	Tags         []string // names on this engine
	User         string
	Env          []string
	Cwd          string
	Entrypoint   []string
	Cmd          []string
	StopSignal   int                   // the signal that stops the image's command; 0: TERM
	Volumes      []string              // declared volumes; sorted
	Healthcheck  *protocol.Healthcheck // without the engine's defaults; nil if the image has no health check
	Size         int64                 // bytes
	OS           string
	Architecture string
}

// images has the methods for the images on the engine, and for loading images from archives.
type images struct {
	*connection
	pullStall time.Duration
}

// FindImage inspects an image that the engine has, without pulling it. It fails with [ErrImageNotFound] if the engine
// does not have the image.
func (im *images) FindImage(ctx context.Context, ref string) (Image, error) {
	return im.findImage(ctx, ref, ref)
}

// findImage inspects the image with this name on the engine. The result has the image's digest in the registry of the
// reference ref.
func (im *images) findImage(ctx context.Context, name, ref string) (Image, error) {
	var img Image
	err := im.do(ctx, call{verb: "inspect", kind: kindImage, name: name, limit: im.readLimit()},
		func(ctx context.Context) error {
			got, err := im.client.ImageInspect(ctx, name)
			if err != nil {
				return err
			}
			img = Image{ID: got.ID, Digest: registryDigest(ref, got.RepoDigests), Tags: got.RepoTags,
				Size: got.Size, OS: got.Os, Architecture: got.Architecture}
			if c := got.Config; c != nil {
				img.User, img.Env, img.Cwd, img.Entrypoint, img.Cmd = c.User, c.Env, c.WorkingDir, c.Entrypoint, c.Cmd
				img.Volumes = slices.Sorted(maps.Keys(c.Volumes))
				img.StopSignal, img.Healthcheck = signalOf(c.StopSignal), healthcheckOf(c.Healthcheck, c.Shell)
			}
			return nil
		})
	return img, err
}

// registryDigest picks the digest for the repository of ref. An image has one digest for each repository that it was
// pulled from or pushed to.
func registryDigest(ref string, digests []string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	found := ""
	for _, d := range digests {
		other, err := reference.ParseNormalizedNamed(d)
		digested, ok := other.(reference.Digested)
		if err != nil || !ok || other.Name() != named.Name() {
			continue
		}
		digest := digested.Digest().String()
		if wanted, ok := named.(reference.Digested); ok && wanted.Digest() == digested.Digest() {
			return digest
		}
		if found == "" {
			found = digest
		}
	}
	return found
}

// ImageNames lists the full references by which the engine finds its images: first the references with tags, then the
// references with digests, then the image ids. Each of these groups is sorted.
func (im *images) ImageNames(ctx context.Context) ([]string, error) {
	var tags, digests, ids []string
	err := im.do(ctx, call{verb: "list", kind: kindImage, limit: im.readLimit()}, func(ctx context.Context) error {
		found, err := im.client.ImageList(ctx, image.ListOptions{})
		for _, img := range found {
			tags, digests, ids = fullNames(tags, img.RepoTags), fullNames(digests, img.RepoDigests),
				fullNames(ids, []string{img.ID})
		}
		return err
	})
	slices.Sort(tags)
	slices.Sort(digests)
	slices.Sort(ids)
	return slices.Concat(tags, digests, ids), err
}

// fullNames appends the full forms of names and skips invalid ones such as "<none>:<none>".
func fullNames(to, names []string) []string {
	for _, name := range names {
		if full, err := imageref.Full("", name); err == nil {
			to = append(to, full)
		}
	}
	return to
}

// RemoveImage removes a name of an image. If it was the last name, the engine also removes the image itself. If a
// container in any state uses the image, RemoveImage fails with failed_precondition and changes nothing. A name that
// does not exist is no error.
func (im *images) RemoveImage(ctx context.Context, refOrID string) error {
	err := im.do(ctx, call{verb: "remove", kind: kindImage, name: refOrID, limit: im.runLimit()},
		func(ctx context.Context) error {
			_, err := im.client.ImageRemove(ctx, refOrID, image.RemoveOptions{PruneChildren: true})
			return err
		})
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil
	}
	return err
}

// ImagesInUse lists the ids of all images that a container uses. Containers of all owners and in all states count.
func (im *images) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	err := im.do(ctx, call{verb: "list", kind: kindContainer, limit: im.readLimit()}, func(ctx context.Context) error {
		found, err := im.client.ContainerList(ctx, container.ListOptions{All: true})
		for _, c := range found {
			used[c.ImageID] = true
		}
		return err
	})
	return used, err
}

// registryOf returns the registry of a reference, under the name that Docker's configuration uses for the registry.
func registryOf(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	if domain := reference.Domain(named); domain != "docker.io" {
		return strings.ToLower(domain)
	}
	return "https://index.docker.io/v1/"
}
