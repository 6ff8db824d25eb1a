package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/imagetar"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/docker"
)

const (
	importRetryFirst = 2 * time.Second
	importRetryMost  = 5 * time.Minute
	importCheck      = time.Minute // interval at which imported images are checked
)

// wantedSource provides the list of images to import, and their files.
type wantedSource interface {
	WantedImages(ctx context.Context, handle func([]*protocol.WantedImage)) error
	ImageFile(ctx context.Context, digest string) (io.ReadCloser, error)
}

// importer imports the images that the deployment wants on this host, and removes imports that the deployment no longer
// wants.
type importer struct {
	worker     string // the worker's name
	deployment string
	engine     *docker.Engine
	inventory  *inventory
	remover    *remover
	source     wantedSource
	recovered  func() <-chan struct{}
	log        *slog.Logger
}

// wantedImages are the images that this worker should import.
type wantedImages struct {
	mu       sync.Mutex
	complete bool // all wanted images have been read
	images   []*protocol.WantedImage
	changed  wake.Signal
}

// list returns the wanted images; complete is false while they are still being read.
func (w *wantedImages) list() (wants []*protocol.WantedImage, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.images, w.complete
}

// run imports and removes images until ctx ends. Failures are retried.
func (i *importer) run(ctx context.Context) {
	w := &wantedImages{changed: wake.New()}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { i.follow(ctx, w) })
	pause := backoff.New(importRetryFirst, importRetryMost)
	for {
		recovered := i.recovered()
		wait := importCheck
		if i.settle(ctx, w) {
			pause.Reset()
		} else {
			wait = pause.Next()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
			pause.Reset()
		case <-recovered:
			pause.Reset()
		case <-time.After(wait):
		}
	}
}

// follow keeps w up to date until ctx ends.
func (i *importer) follow(ctx context.Context, w *wantedImages) {
	handle := func(all []*protocol.WantedImage) {
		all = slices.DeleteFunc(all, func(want *protocol.WantedImage) bool {
			return len(want.Workers) > 0 && !slices.Contains(want.Workers, i.worker)
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.images, w.complete = all, true
		w.changed.Wake()
	}
	for ctx.Err() == nil {
		err := i.source.WantedImages(ctx, handle)
		if err != nil && ctx.Err() == nil {
			i.log.Warn("could not follow the list of images to import; retrying", "error", err)
		}
		if !backoff.Sleep(ctx, time.Second) {
			return
		}
	}
}

// settle imports missing images, and removes imports that are no longer wanted. It returns false if anything failed.
func (i *importer) settle(ctx context.Context, w *wantedImages) (settled bool) {
	wants, complete := w.list()
	if !complete {
		return true // not a failure: once the list is complete, i.follow wakes i.run
	}
	settled = true
	names := map[string]bool{}
	for _, want := range wants {
		name := i.localName(want.Ref)
		names[name] = true
		names[want.Ref] = true // an import by an older version has this name until importOne gives it the new name
		if err := i.importOne(ctx, want, name); err != nil && ctx.Err() == nil {
			settled = false
			i.log.Warn("could not import an image; retrying", "image", want.Ref, "error", err)
			i.inventory.setStatus(name, protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported,
				State: protocol.ImageFailed, File: want.Digest, Error: protocol.AsError(err)})
		}
	}
	for _, name := range i.inventory.unpinUnwanted(names) {
		if err := i.remover.remove(ctx, name); err != nil && ctx.Err() == nil {
			settled = false
			i.log.Warn("could not remove an imported image that is no longer wanted; retrying", "image", name, "error", err)
		}
	}
	return settled
}

// localName returns the name of an imported image on the host.
func (i *importer) localName(ref string) string {
	return imageref.Local(i.deployment, protocol.ImageImported, ref)
}

// importOne imports an image under the worker's own name, unless the host already has the import. It does not change
// which image has the name that specs use. An import that was removed from the host is imported again.
func (i *importer) importOne(ctx context.Context, want *protocol.WantedImage, name string) error {
	if full, err := imageref.Full("ref", want.Ref); err != nil || full != want.Ref {
		return protocol.Invalid("ref", "is not a full image reference: %.80q", want.Ref)
	}
	defer i.inventory.hold(want.Ref)()
	r := i.inventory.pin(name, protocol.ImageImported)
	found, err := i.engine.FindImage(ctx, name)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return err
	}
	if found.ID == "" || r == nil || r.ID != found.ID || r.File != want.Digest {
		i.inventory.setStatus(name, protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported,
			State: protocol.ImageLoading, File: want.Digest})
		adopted, err := i.adoptOlder(ctx, want, name)
		if err == nil && !adopted {
			err = i.loadFile(ctx, want, name)
		}
		if err != nil {
			return err
		}
		if found, err = i.engine.FindImage(ctx, name); err != nil {
			return err
		}
		i.log.Info("imported an image", "image", want.Ref, "name", name, "id", found.ID)
		r = nil
	}
	if r == nil {
		i.inventory.put(name, &record{Ref: want.Ref, ID: found.ID, Size: protocol.Bytes(found.Size),
			Origin: protocol.ImageImported, File: want.Digest, UsedAt: time.Now().UTC()})
	}
	i.inventory.clearStatus(name)
	return i.releaseOlder(ctx, want.Ref)
}

// adoptOlder adds a name to an image that an older version imported under another name. It returns false if no older
// version imported the wanted file.
func (i *importer) adoptOlder(ctx context.Context, want *protocol.WantedImage, name string) (adopted bool, err error) {
	r := i.inventory.older(want.Ref)
	if r == nil || r.File != want.Digest {
		return false, nil
	}
	found, err := i.engine.FindImage(ctx, r.ID)
	if errors.Is(err, docker.ErrImageNotFound) || err == nil && found.ID != r.ID {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, i.engine.TagImage(ctx, r.ID, name)
}

// releaseOlder removes the name that an older version gave to an imported image. The image must have its new name
// already. If the older version took the name from another client's image, the name stays.
func (i *importer) releaseOlder(ctx context.Context, ref string) error {
	r := i.inventory.older(ref)
	if r == nil {
		return nil
	}
	found, err := i.engine.FindImage(ctx, ref)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return err
	}
	if found.ID == r.ID && !r.Others {
		if err := i.engine.RemoveImage(ctx, ref); err != nil {
			return err
		}
	}
	i.inventory.dropOlder(ref, r)
	return nil
}

// loadFile loads an image from its file into the engine, under the given name. It checks the file's digest while it
// reads the file.
func (i *importer) loadFile(ctx context.Context, want *protocol.WantedImage, name string) error {
	file, err := i.source.ImageFile(ctx, want.Digest)
	if err != nil {
		return err
	}
	defer file.Close()
	checked := &checkedFile{r: file, sum: sha256.New(), want: want.Digest}
	switch want.Format {
	case protocol.ImageRootFS:
		plain, err := imagetar.Open(checked)
		if err != nil {
			return err
		}
		return i.engine.ImportImage(ctx, io.MultiReader(plain, &drain{checked}), name, want.Changes)
	case protocol.ImageArchive:
		r, w := io.Pipe()
		renamed := make(chan struct{})
		go func() {
			defer close(renamed)
			err := imagetar.Rename(w, checked, name, runtime.GOARCH)
			if err == nil {
				_, err = io.Copy(io.Discard, checked)
			}
			w.CloseWithError(err)
		}()
		err := i.engine.LoadImage(ctx, r)
		r.CloseWithError(errors.New("the engine stopped reading"))
		<-renamed
		return err
	}
	return protocol.Invalid("format", "must be %q or %q, got %.40q", protocol.ImageArchive, protocol.ImageRootFS,
		want.Format)
}

// checkedFile reads a file. At the end of the file, it returns an error if the content does not have the wanted digest.
type checkedFile struct {
	r    io.Reader
	sum  hash.Hash
	want string
}

func (c *checkedFile) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && "sha256-"+hex.EncodeToString(c.sum.Sum(nil)) != c.want {
		return n, protocol.Errorf(protocol.FailedPrecondition, "", "the stored file does not match its digest %s", c.want)
	}
	return n, err
}

// drain reads and discards the rest of a file after the decompressor has stopped, because the digest covers the whole
// file.
type drain struct{ r io.Reader }

func (d *drain) Read([]byte) (int, error) {
	if _, err := io.Copy(io.Discard, d.r); err != nil {
		return 0, err
	}
	return 0, io.EOF
}
