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
			m.show(protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported, State: protocol.ImageFailed, File: want.Digest, Error: protocol.AsError(err)})
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

// unwanted lists the imported names that are no longer wanted. They are not kept any more; those in
// use go when they are not.
func (m *images) unwanted(wants []*protocol.WantedImage) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var refs []string
	gone := func(ref string) bool {
		return !slices.ContainsFunc(wants, func(w *protocol.WantedImage) bool { return w.Ref == ref })
	}
	for ref, r := range m.records {
		if r.Origin == protocol.ImageImported && gone(ref) {
			refs = append(refs, ref)
		}
	}
	for ref, origin := range m.keep {
		if origin == protocol.ImageImported && gone(ref) {
			delete(m.keep, ref)
			delete(m.status, ref)
			signal(m.changed)
		}
	}
	return refs
}

// importOne gets an image from its file, unless it is here. One that somebody removed is got again. A
// name that somebody else has given to an image is theirs: an import moves it, once, and it is never
// removed; where they give it to another image after that, it stays so.
func (m *images) importOne(ctx context.Context, want *protocol.WantedImage) error {
	if full, err := imageref.Full("ref", want.Ref); err != nil || full != want.Ref {
		return protocol.Invalid("ref", "is not a full image reference: %.80q", want.Ref)
	}
	defer m.hold(want.Ref)()
	m.mu.Lock()
	if m.keep[want.Ref] != protocol.ImagePrePull {
		m.keep[want.Ref] = protocol.ImageImported
	}
	r := m.records[want.Ref]
	m.mu.Unlock()
	before, err := m.w.engine.FindImage(ctx, want.Ref)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return err
	}
	others := before.ID != "" && (r == nil || r.Others || r.ID != before.ID)
	if before.ID != "" && r != nil && r.File == want.Digest {
		if r.ID != before.ID {
			return protocol.Errorf(protocol.AlreadyExists, "", "somebody gave the name to another image on the host, %s; it is imported again once the name is removed there", before.ID)
		}
		m.imported(want, before, others)
		return nil
	}
	m.show(protocol.HostImage{Ref: want.Ref, Origin: protocol.ImageImported, State: protocol.ImageLoading, File: want.Digest})
	if err := m.takeFile(ctx, want); err != nil {
		return err
	}
	found, err := m.w.engine.FindImage(ctx, want.Ref)
	if err != nil {
		return err
	}
	m.imported(want, found, others)
	m.w.log.Info("imported an image", "image", want.Ref, "id", found.ID, "others", others)
	return nil
}

// imported records that an image is here, and shows it. others says that its name is somebody else's.
func (m *images) imported(want *protocol.WantedImage, found docker.Image, others bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[want.Ref]; r == nil || r.ID != found.ID || r.File != want.Digest {
		m.own(want.Ref, &imageRecord{ID: found.ID, Size: protocol.Bytes(found.Size), Origin: protocol.ImageImported, File: want.Digest, Others: others, UsedAt: time.Now().UTC()})
	}
	if _, shown := m.status[want.Ref]; shown {
		delete(m.status, want.Ref)
		signal(m.changed)
	}
}

// takeFile gives the file of an image to the engine, and checks it on the way.
func (m *images) takeFile(ctx context.Context, want *protocol.WantedImage) error {
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
		return m.w.engine.ImportImage(ctx, io.MultiReader(plain, &rest{checked}), want.Ref, want.Changes)
	case protocol.ImageArchive:
		r, w := io.Pipe()
		renamed := make(chan struct{})
		go func() {
			defer close(renamed)
			err := imagetar.Rename(w, checked, want.Ref, runtime.GOARCH)
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
