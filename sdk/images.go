package sdk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/imagetar"
	"github.com/boxfleet/boxfleet/protocol"
)

// ImageFile is a file to import an image from.
type ImageFile struct {
	Ref     string        // the image's name, NAME or NAME:TAG, in place of those that an archive has
	Content io.ReadSeeker // an archive of docker save, an OCI image layout, or a root filesystem, as tar, plain or compressed with gzip, bzip2 or zstd
	Changes []string      // Dockerfile instructions for the image of a root filesystem, such as "ENV A=1"
	Workers []string      // names of those that should have it; none: all, also those that come later

	Progress func(sent, total int64) // of the upload; may be nil
}

// ImportImage uploads an image and has the fleet's hosts get it, in place of what was imported under
// its name before. They keep it until [Client.RemoveImage], so that a fleet needs no registry; a
// host that joins later gets it too. [Client.WaitImage] waits for them. Images are the fleet's, not
// the tenant's: importing is for operators.
//
// Errors: invalid_argument for a name that is none, and for a file that is no tar, or an archive of
// more than one image; not_found, field workers, for a worker that the fleet does not know.
func (c *Client) ImportImage(ctx context.Context, f ImageFile) (*protocol.WantedImage, error) {
	ref, err := imageref.Full("ref", f.Ref)
	if err != nil {
		return nil, err
	}
	if imageref.Registry(ref) == imageref.LocalRegistry {
		return nil, protocol.Invalid("ref", "%s is for the names that workers give: %.80q", imageref.LocalRegistry, f.Ref)
	}
	if strings.Contains(ref, "@") {
		return nil, protocol.Invalid("ref", "must be a name with a tag, not a digest: %.80q", f.Ref)
	}
	for _, w := range f.Workers {
		if err := protocol.ValidateID("workers", w); err != nil {
			return nil, err
		}
	}
	if err := c.knownWorkers(ctx, f.Workers); err != nil {
		return nil, err
	}
	want := &protocol.WantedImage{Ref: ref, Changes: f.Changes, Workers: f.Workers, Time: c.Now(ctx)}
	sum := sha256.New()
	size := &counter{w: sum}
	info, err := imagetar.Inspect(io.TeeReader(&cancellable{ctx, f.Content}, size))
	if err == nil {
		_, err = io.Copy(size, f.Content) // what a decompressor left
	}
	if err != nil {
		return nil, failed(ctx, err, "read the image")
	}
	if info.Format == protocol.ImageArchive && len(f.Changes) > 0 {
		return nil, protocol.Invalid("changes", "apply to root filesystems only, and this is an archive with an image")
	}
	want.Format, want.Size, want.Digest = info.Format, protocol.Bytes(size.n), "sha256-"+hex.EncodeToString(sum.Sum(nil))
	put := func() error {
		if _, err := f.Content.Seek(0, io.SeekStart); err != nil {
			return fileError(err)
		}
		var content io.Reader = f.Content
		if f.Progress != nil {
			content = &watched{r: f.Content, total: size.n, tell: f.Progress}
		}
		return c.conn.PutImageFile(ctx, want.Digest, content)
	}
	if err = tryUpload(ctx, put); err == nil {
		err = c.conn.WantImage(ctx, want)
	}
	if err == nil { // who gave up another image of the same content may have removed its file just before that
		err = tryUpload(ctx, put)
	}
	return want, failed(ctx, err, "upload the image")
}

// knownWorkers refuses names of workers that the fleet does not know: nobody would ever have the image for them.
func (c *Client) knownWorkers(ctx context.Context, workers []string) error {
	if len(workers) == 0 {
		return nil
	}
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.Worker)
	}
	for i, w := range workers {
		if !slices.Contains(names, w) {
			return unknownHost(fmt.Sprintf("workers[%d]", i), w, names)
		}
	}
	return nil
}

// mostNamed is how many of the fleet's workers an error names.
const mostNamed = 20

// unknownHost is the error for a name that no worker has.
func unknownHost(field, name string, names []string) error {
	there := "it has none"
	if slices.Sort(names); len(names) > mostNamed {
		there = fmt.Sprintf("it has %s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
	} else if len(names) > 0 {
		there = "it has " + strings.Join(names, ", ")
	}
	return &protocol.Error{Code: protocol.NotFound, Field: field, Message: fmt.Sprintf("the fleet has no worker %.80s; %s", name, there)}
}

// RemoveImage has the fleet forget an imported image: hosts remove it once nothing uses it. Error:
// not_found.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	full, err := imageref.Full("ref", ref)
	if err != nil {
		return err
	}
	return failed(ctx, c.conn.UnwantImage(ctx, full), "remove the image")
}

// Images lists what was imported, and, by worker, the images that each looks after: what it pulled,
// and what it was told to have.
func (c *Client) Images(ctx context.Context) (imported []*protocol.WantedImage, hosts []*protocol.HostImages, err error) {
	imported, hosts, err = c.conn.Images(ctx)
	slices.SortFunc(imported, func(a, b *protocol.WantedImage) int { return strings.Compare(a.Ref, b.Ref) })
	slices.SortFunc(hosts, func(a, b *protocol.HostImages) int { return strings.Compare(a.Worker, b.Worker) })
	return imported, hosts, failed(ctx, err, "list images")
}

const imagePoll = 500 * time.Millisecond

// WaitImage waits until each host that should have an imported image has it, or has failed to get it
// once, and returns what became of it, by worker. Hosts that do not answer now are not waited for,
// unless they were named at the import: where none does, and none was named, nobody is waited for.
// While no coordinator or no NATS answers, the wait goes on. report hears of each change; it may be nil.
func (c *Client) WaitImage(ctx context.Context, want *protocol.WantedImage, report func(worker string, i protocol.HostImage)) (map[string]protocol.HostImage, error) {
	found := map[string]protocol.HostImage{}
	for {
		workers, err := c.imageTargets(ctx, want)
		var hosts []*protocol.HostImages
		if err == nil {
			_, hosts, err = c.Images(ctx)
		}
		if isTransient(err) && pause(ctx, imagePoll) {
			continue
		}
		if err != nil {
			return found, failed(ctx, err, "wait for the image")
		}
		for _, h := range hosts {
			for _, i := range h.Images {
				if i.Ref == want.Ref && i.File == want.Digest && slices.Contains(workers, h.Worker) && found[h.Worker].State != i.State {
					found[h.Worker] = i
					if report != nil {
						report(h.Worker, i)
					}
				}
			}
		}
		open := slices.ContainsFunc(workers, func(w string) bool { return found[w].State == "" || found[w].State == protocol.ImageLoading })
		if !open {
			return found, nil
		}
		if !pause(ctx, imagePoll) {
			return found, ctxEnded(ctx.Err(), "wait for the image")
		}
	}
}

// imageTargets are the workers whose hosts an image is waited for on.
func (c *Client) imageTargets(ctx context.Context, want *protocol.WantedImage) ([]string, error) {
	if len(want.Workers) > 0 {
		return want.Workers, nil
	}
	hosts, err := c.Hosts(ctx)
	var workers []string
	for _, h := range hosts {
		if h.State == protocol.HostReady {
			workers = append(workers, h.Worker)
		}
	}
	return workers, err
}
