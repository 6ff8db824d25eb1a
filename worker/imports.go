package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/imagetar"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

const (
	importRetryFirst = 2 * time.Second
	importRetryMost  = 5 * time.Minute
	importCheck      = time.Minute // between two looks whether imported images are still there
)

// wanted is what a worker knows of the images that are to be imported.
type wanted struct {
	mu    sync.Mutex
	known bool                             // everything was heard at least once
	byKey map[string]*protocol.WantedImage // that this worker should have
	woken chan struct{}                    // has room for one
}

// importWanted keeps the host's imported images as they are wanted, until ctx ends. What cannot be
// done now is tried again.
func (m *images) importWanted(ctx context.Context) {
	w := &wanted{byKey: map[string]*protocol.WantedImage{}, woken: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.hearWanted(ctx, w) })
	pause := importRetryFirst
	for {
		back := m.w.recovery.next()
		wait := importCheck
		if m.settleWanted(ctx, w) {
			pause = importRetryFirst
		} else {
			wait, pause = pause, min(2*pause, importRetryMost)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
			pause = importRetryFirst
		case <-back:
			pause = importRetryFirst
		case <-time.After(wait):
		}
	}
}

func (m *images) hearWanted(ctx context.Context, w *wanted) {
	for ctx.Err() == nil {
		err := m.w.conn.FollowWantedImages(ctx, func(key string, want *protocol.WantedImage) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.byKey, key)
			if want != nil && (len(want.Workers) == 0 || slices.Contains(want.Workers, m.w.cfg.Name)) {
				w.byKey[key] = want
			}
			signal(w.woken)
		}, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.known = true
			signal(w.woken)
		})
		if err != nil && ctx.Err() == nil {
			m.w.log.Warn("wanted images are not heard of", "error", err)
		}
		if !sleep(ctx, time.Second) {
			return
		}
	}
}

// settleWanted does what is left to do, and says whether nothing is.
func (m *images) settleWanted(ctx context.Context, w *wanted) (settled bool) {
	w.mu.Lock()
	known, wants := w.known, make([]*protocol.WantedImage, 0, len(w.byKey))
	for _, want := range w.byKey {
		wants = append(wants, want)
	}
	w.mu.Unlock()
	if !known {
		return true // it wakes when it is
	}
	settled = true
	for _, want := range wants {
		if err := m.importOne(ctx, want); err != nil && ctx.Err() == nil {
			settled = false
			m.w.log.Warn("an image is not imported yet", "image", want.Ref, "error", err)
			m.show(m.localName(protocol.ImageImported, want.Ref), protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported, State: protocol.ImageFailed, File: want.Digest, Error: protocol.AsError(err)})
		}
	}
	for _, ref := range m.unwanted(wants) {
		if err := m.remove(ctx, ref); err != nil && ctx.Err() == nil {
			settled = false
			m.w.log.Warn("an image that is no longer wanted is not removed yet", "image", ref, "error", err)
		}
	}
	return settled
}

// unwanted lists the names of imported images that are no longer wanted. They are not kept any more;
// those in use go when they are not.
func (m *images) unwanted(wants []*protocol.WantedImage) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for _, w := range wants {
		names[m.localName(protocol.ImageImported, w.Ref)], names[w.Ref] = true, true // an older version's is there until it has the new name
	}
	var gone []string
	for name, r := range m.records {
		if r.Origin == protocol.ImageImported && !names[name] {
			gone = append(gone, name)
		}
	}
	for name, origin := range m.keep {
		if origin == protocol.ImageImported && !names[name] {
			delete(m.keep, name)
			delete(m.status, name)
			signal(m.changed)
		}
	}
	return gone
}

// importOne gets an image from its file, unless it is here, under a name of the worker's own: what the
// host calls so stays as it is. One that somebody removed is got again.
func (m *images) importOne(ctx context.Context, want *protocol.WantedImage) error {
	if full, err := imageref.Full("ref", want.Ref); err != nil || full != want.Ref {
		return protocol.Invalid("ref", "is not a full image reference: %.80q", want.Ref)
	}
	defer m.hold(want.Ref)()
	name := m.localName(protocol.ImageImported, want.Ref)
	m.mu.Lock()
	m.keep[name] = protocol.ImageImported
	r := m.records[name]
	m.mu.Unlock()
	before, err := m.w.engine.FindImage(ctx, name)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return err
	}
	if before.ID == "" || r == nil || r.ID != before.ID || r.File != want.Digest {
		m.show(name, protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported, State: protocol.ImageLoading, File: want.Digest})
		taken, err := m.takeOlder(ctx, want, name)
		if err == nil && !taken {
			err = m.takeFile(ctx, want, name)
		}
		if err != nil {
			return err
		}
		if before, err = m.w.engine.FindImage(ctx, name); err != nil {
			return err
		}
		m.w.log.Info("imported an image", "image", want.Ref, "name", name, "id", before.ID)
	}
	m.imported(want, name, before)
	return m.releaseOlder(ctx, want.Ref)
}

// imported records that an image is here, and shows it.
func (m *images) imported(want *protocol.WantedImage, name string, found docker.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[name]; r == nil || r.ID != found.ID || r.File != want.Digest {
		m.own(name, &imageRecord{Ref: want.Ref, ID: found.ID, Size: protocol.Bytes(found.Size), Origin: protocol.ImageImported, File: want.Digest, UsedAt: time.Now().UTC()})
	}
	if _, shown := m.status[name]; shown {
		delete(m.status, name)
		signal(m.changed)
	}
}

// older is the record of an import by an older version, which called images on the host what specs do.
func (m *images) older(ref string) *imageRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[ref]; r != nil && r.Origin == protocol.ImageImported && r.Ref == "" {
		return r
	}
	return nil
}

// takeOlder gives an image that an older version imported its name, and says whether it is the wanted one.
func (m *images) takeOlder(ctx context.Context, want *protocol.WantedImage, name string) (taken bool, err error) {
	r := m.older(want.Ref)
	if r == nil || r.File != want.Digest {
		return false, nil
	}
	if found, err := m.w.engine.FindImage(ctx, r.ID); errors.Is(err, docker.ErrImageNotFound) || err == nil && found.ID != r.ID {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, m.w.engine.TagImage(ctx, r.ID, name)
}

// releaseOlder takes back the name that an older version gave to an imported image, once it has another.
// One that was somebody else's before stays.
func (m *images) releaseOlder(ctx context.Context, ref string) error {
	r := m.older(ref)
	if r == nil {
		return nil
	}
	found, err := m.w.engine.FindImage(ctx, ref)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return err
	}
	if found.ID == r.ID && !r.Others {
		if err := m.w.engine.RemoveImage(ctx, ref); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[ref] == r {
		delete(m.records, ref)
		if m.keep[ref] == protocol.ImageImported {
			delete(m.keep, ref)
			delete(m.status, ref)
		}
		m.save()
		signal(m.changed)
	}
	return nil
}

// takeFile gives the file of an image to the engine, under a name, and checks it on the way.
func (m *images) takeFile(ctx context.Context, want *protocol.WantedImage, name string) error {
	file, err := m.w.conn.ImageFile(ctx, want.Digest)
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
		return m.w.engine.ImportImage(ctx, io.MultiReader(plain, &rest{checked}), name, want.Changes)
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
		err := m.w.engine.LoadImage(ctx, r)
		r.CloseWithError(errors.New("the engine stopped reading"))
		<-renamed
		return err
	}
	return protocol.Invalid("format", "must be %q or %q, got %.40q", protocol.ImageArchive, protocol.ImageRootFS, want.Format)
}

// checkedFile ends with an error where its content does not have the digest that it should.
type checkedFile struct {
	r    io.Reader
	sum  hash.Hash
	want string
}

func (c *checkedFile) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && "sha256-"+hex.EncodeToString(c.sum.Sum(nil)) != c.want {
		return n, protocol.Errorf(protocol.FailedPrecondition, "", "what is stored does not match its digest %s", c.want)
	}
	return n, err
}

// rest reads what a decompressor left of a file, and gives none of it: only whether it was whole.
type rest struct{ r io.Reader }

func (t *rest) Read([]byte) (int, error) {
	if _, err := io.Copy(io.Discard, t.r); err != nil {
		return 0, err
	}
	return 0, io.EOF
}
