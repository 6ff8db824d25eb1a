package sdk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/imagetar"
	"github.com/boxfleet/boxfleet/protocol"
)

// Images imports images into the fleet and lists the images of the hosts. A fleet that has imported its images needs no
// registry. Images belong to the fleet, not to a tenant, so the methods of Images are for operators.
type Images struct{ client *Client }

// Images gives access to the calls about images.
func (c *Client) Images() *Images { return &Images{c} }

// List reads the imported images, sorted by name. The sequence ends after the first error.
func (i *Images) List(ctx context.Context) iter.Seq2[*ImportedImage, error] {
	return listOf(func() ([]*ImportedImage, error) {
		imported, _, err := i.read(ctx)
		return imported, err
	})
}

// OnHosts reads which pulled and imported images each worker manages, sorted by worker. Images that came to a host in
// other ways are not listed. The sequence ends after the first error.
func (i *Images) OnHosts(ctx context.Context) iter.Seq2[*HostImages, error] {
	return listOf(func() ([]*HostImages, error) {
		_, hosts, err := i.read(ctx)
		return hosts, err
	})
}

func (i *Images) read(ctx context.Context) (imported []*ImportedImage, hosts []*HostImages, err error) {
	imported, hosts, err = i.client.conn.Images(ctx)
	slices.SortFunc(imported, func(a, b *ImportedImage) int { return strings.Compare(a.Ref, b.Ref) })
	slices.SortFunc(hosts, func(a, b *HostImages) int { return strings.Compare(a.Worker, b.Worker) })
	return imported, hosts, failed(ctx, err, "list images")
}

// Import uploads an image and distributes it to the fleet's hosts under the name ref, which is NAME or NAME:TAG. It
// replaces an earlier import under that name. Names inside the content are ignored. Hosts keep the image until
// [Images.Remove]. A host that joins later also gets the image. [Images.Wait] waits for the hosts.
//
// The content is a tar, plain or compressed with gzip, bzip2 or zstd: an archive that docker save wrote, an OCI image
// layout, or a root file system. Import reads the content two or more times and seeks to its start each time. If ctx
// ends first, an incomplete upload is discarded; repeating the call is safe.
//
// Options: [WithWorkers], [WithProgress], [WithChanges] for a root file system. Errors: invalid_argument for an invalid
// name, and for content that does not hold exactly one image; not_found for a worker that the fleet does not know.
func (i *Images) Import(ctx context.Context, ref string, content io.ReadSeeker, opts ...ImportOption) (
	*ImportedImage, error) {
	o := settingsOf(opts, ImportOption.forImport)
	image, err := i.describe(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	if err := inspectContent(ctx, image, content); err != nil {
		return nil, err
	}
	put := func() error {
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return fileError(err)
		}
		var from io.Reader = content
		if o.progress != nil {
			from = &progressReader{r: content, total: int64(image.Size), report: o.progress}
		}
		return i.client.conn.PutImageFile(ctx, image.Digest, from)
	}
	if err = retryUpload(ctx, put); err == nil {
		err = i.client.conn.WantImage(ctx, image)
	}
	if err == nil { // the removal of another image with the same content may have deleted the file
		err = retryUpload(ctx, put)
	}
	return image, failed(ctx, err, "upload the image")
}

// describe checks the arguments of an import. It returns the image without format, size and digest.
func (i *Images) describe(ctx context.Context, name string, o *settings) (*ImportedImage, error) {
	ref, err := imageref.Full("ref", name)
	if err != nil {
		return nil, err
	}
	if imageref.Registry(ref) == imageref.LocalRegistry {
		return nil, protocol.Invalid("ref", "%s is reserved for names that workers give: %.80q", imageref.LocalRegistry, name)
	}
	if strings.Contains(ref, "@") {
		return nil, protocol.Invalid("ref", "must be a name with a tag, not a digest: %.80q", name)
	}
	for _, w := range o.workers {
		if err := protocol.ValidateID("workers", w); err != nil {
			return nil, err
		}
	}
	if err := i.checkWorkers(ctx, o.workers); err != nil {
		return nil, err
	}
	return &ImportedImage{Ref: ref, Changes: o.changes, Workers: o.workers, Time: i.client.Now(ctx)}, nil
}

// inspectContent reads the whole content, and sets the format, size and digest of the image.
func inspectContent(ctx context.Context, image *ImportedImage, content io.Reader) error {
	sum := sha256.New()
	size := &countingWriter{w: sum}
	info, err := imagetar.Inspect(io.TeeReader(&contextReader{ctx, content}, size))
	if err == nil {
		_, err = io.Copy(size, content) // read the rest, too: a decompressor may stop before the end
	}
	if err != nil {
		return failed(ctx, err, "read the image")
	}
	if info.Format == protocol.ImageArchive && len(image.Changes) > 0 {
		return protocol.Invalid("changes", "apply only to a root file system, but the content is an archive with an image")
	}
	image.Format, image.Size, image.Digest = info.Format, Bytes(size.n), "sha256-"+hex.EncodeToString(sum.Sum(nil))
	return nil
}

// checkWorkers refuses workers that are not in the fleet, because no host would ever import the image for them.
func (i *Images) checkWorkers(ctx context.Context, workers []string) error {
	if len(workers) == 0 {
		return nil
	}
	hosts, err := ReadAll(i.client.Hosts().List(ctx))
	if err != nil {
		return err
	}
	for n, w := range workers {
		if !slices.ContainsFunc(hosts, func(h *Host) bool { return h.Worker == w }) {
			return unknownHost(fmt.Sprintf("workers[%d]", n), w, hosts)
		}
	}
	return nil
}

// Remove makes the fleet forget an imported image. Hosts remove the image when no sandbox uses it. If ctx ends first,
// the image may still be removed; repeating the call is safe. Errors: invalid_argument; not_found.
func (i *Images) Remove(ctx context.Context, ref string) error {
	full, err := imageref.Full("ref", ref)
	if err != nil {
		return err
	}
	return failed(ctx, i.client.conn.UnwantImage(ctx, full), "remove the image")
}

const imagePoll = 500 * time.Millisecond

// Wait waits until each host has an imported image or has failed once to get it, and returns the outcomes by worker. It
// waits only for hosts that are ready, or for the workers that the import named. If there is no such host, it returns
// at once. Wait continues during outages of coordinators and NATS. If report is not nil, Wait calls it with each
// change. Ending ctx ends only the wait, which then returns the outcomes so far and an error. Errors: invalid_argument
// if image is nil; the errors of [Hosts.List].
func (i *Images) Wait(ctx context.Context, image *ImportedImage, report func(worker string, i HostImage)) (
	map[string]HostImage, error) {
	found := map[string]HostImage{}
	if image == nil {
		return found, protocol.Invalid("image", "must not be nil")
	}
	for {
		workers, err := i.targets(ctx, image)
		var hosts []*HostImages
		if err == nil {
			_, hosts, err = i.read(ctx)
		}
		if isTransient(err) && backoff.Sleep(ctx, imagePoll) {
			continue
		}
		if err != nil {
			return found, failed(ctx, err, "wait for the image")
		}
		for _, h := range hosts {
			if at, ok := stateOn(h, image); ok && slices.Contains(workers, h.Worker) && found[h.Worker].State != at.State {
				found[h.Worker] = at
				if report != nil {
					report(h.Worker, at)
				}
			}
		}
		isOpen := func(w string) bool { return found[w].State == "" || found[w].State == protocol.ImageLoading }
		if !slices.ContainsFunc(workers, isOpen) {
			return found, nil
		}
		if !backoff.Sleep(ctx, imagePoll) {
			return found, ctxEnded(ctx.Err(), "wait for the image")
		}
	}
}

// stateOn returns the state that a host reports for an imported image.
func stateOn(h *HostImages, image *ImportedImage) (HostImage, bool) {
	n := slices.IndexFunc(h.Images, func(i HostImage) bool { return i.Ref == image.Ref && i.File == image.Digest })
	if n < 0 {
		return HostImage{}, false
	}
	return h.Images[n], true
}

// targets returns the workers that Wait waits for.
func (i *Images) targets(ctx context.Context, image *ImportedImage) ([]string, error) {
	if len(image.Workers) > 0 {
		return image.Workers, nil
	}
	hosts, err := ReadAll(i.client.Hosts().List(ctx))
	var workers []string
	for _, h := range hosts {
		if h.State == protocol.HostReady {
			workers = append(workers, h.Worker)
		}
	}
	return workers, err
}
