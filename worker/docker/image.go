package docker

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// Image is what an image says of itself.
type Image struct {
	ID           string
	Digest       string   // as the registry of the reference that was asked for has it; "" for one of no registry
	Tags         []string // names on this engine
	User         string
	Env          []string
	Cwd          string
	Entrypoint   []string
	Cmd          []string
	StopSignal   int                   // that its command ends by; 0: TERM
	Volumes      []string              // paths at which it declares volumes; sorted
	Healthcheck  *protocol.Healthcheck // nil: none; without the defaults that are not the image's
	Size         int64                 // bytes
	OS           string
	Architecture string
}

// FindImage reads an image that the engine has. It fails with [ErrImageNotFound] when it has none.
// [Engine.PullImage] gets one.
func (e *Engine) FindImage(ctx context.Context, ref string) (Image, error) {
	return e.findImage(ctx, ref, ref)
}

// findImage reads the image that the engine has under a name, with its digest in the registry of ref.
func (e *Engine) findImage(ctx context.Context, name, ref string) (Image, error) {
	var img Image
	err := e.do(ctx, call{verb: "inspect", kind: kindImage, name: name, limit: e.readLimit()}, func(ctx context.Context) error {
		got, err := e.client.ImageInspect(ctx, name)
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

// registryDigest picks from an image's digests, one for each repository that it came from or went
// to, that of the reference's repository.
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
		if asked, ok := named.(reference.Digested); ok && asked.Digest() == digested.Digest() {
			return digest
		}
		if found == "" {
			found = digest
		}
	}
	return found
}

// ImageNames lists the full references that the engine finds its images by: first those with tags,
// then those with digests, then ids; each part sorted.
func (e *Engine) ImageNames(ctx context.Context) ([]string, error) {
	var tags, digests, ids []string
	err := e.do(ctx, call{verb: "list", kind: kindImage, limit: e.readLimit()}, func(ctx context.Context) error {
		found, err := e.client.ImageList(ctx, image.ListOptions{})
		for _, img := range found {
			tags, digests, ids = fullNames(tags, img.RepoTags), fullNames(digests, img.RepoDigests), fullNames(ids, []string{img.ID})
		}
		return err
	})
	slices.Sort(tags)
	slices.Sort(digests)
	slices.Sort(ids)
	return slices.Concat(tags, digests, ids), err
}

// fullNames appends the full forms of names, without those that are none, such as "<none>:<none>".
func fullNames(to, names []string) []string {
	for _, name := range names {
		if full, err := imageref.Full("", name); err == nil {
			to = append(to, full)
		}
	}
	return to
}

// RemoveImage takes a name from an image, and removes the image with its last name. It fails with
// failed_precondition, and changes nothing, when a container of any state uses it. Absent is no error.
func (e *Engine) RemoveImage(ctx context.Context, refOrID string) error {
	err := e.do(ctx, call{verb: "remove", kind: kindImage, name: refOrID, limit: e.runLimit()}, func(ctx context.Context) error {
		_, err := e.client.ImageRemove(ctx, refOrID, image.RemoveOptions{PruneChildren: true})
		return err
	})
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil
	}
	return err
}

// ImagesInUse lists the ids of the images that any container uses, whoever made it, in any state.
func (e *Engine) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	err := e.do(ctx, call{verb: "list", kind: kindContainer, limit: e.readLimit()}, func(ctx context.Context) error {
		found, err := e.client.ContainerList(ctx, container.ListOptions{All: true})
		for _, c := range found {
			used[c.ImageID] = true
		}
		return err
	})
	return used, err
}

// registryOf says which registry a reference names, as Docker's configuration calls it.
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
