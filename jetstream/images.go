package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Prefixes of the keys in the bucket of images. Operators write "want.<hash of the reference>", and workers write
// "host.<worker>".
const (
	wantPrefix = "want."
	hostPrefix = "host."
)

func wantKey(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return wantPrefix + hex.EncodeToString(sum[:16])
}

// UnwantedAge is the age at which a file is removed if no wanted image refers to it. A younger file may belong to an
// import that has not stored its image yet.
const UnwantedAge = 24 * time.Hour

// ImageStore stores imported images, and records which images operators want and which images each host has.
type ImageStore struct {
	*streams

	objects *objectStore
}

// PutImageFile stores the file of an image under its digest. If the file is already stored, PutImageFile only resets
// its age: an old file might be removed before an image refers to it.
func (i *ImageStore) PutImageFile(ctx context.Context, digest string, r io.Reader) error {
	for {
		info, sequence, err := i.objects.objectAt(ctx, protocol.BucketImageFiles, digest)
		if err != nil {
			return err
		}
		if info == nil {
			return i.putFile(ctx, digest, sequence, r)
		}
		if err := i.objects.renewObject(ctx, info, sequence); err != ErrConflict {
			return err
		}
	}
}

// putFile stores a file that was not stored when the caller looked. Another process may have stored it in the meantime.
func (i *ImageStore) putFile(ctx context.Context, digest string, expected uint64, r io.Reader) error {
	err := i.objects.putObject(ctx, protocol.BucketImageFiles, digest, expected, r)
	if errors.Is(err, ErrConflict) {
		if info, _, failed := i.objects.objectAt(ctx, protocol.BucketImageFiles, digest); info != nil || failed != nil {
			return failed
		}
	}
	return err
}

// ImageFile opens the file of an image; the caller closes it. Error: not_found.
func (i *ImageStore) ImageFile(ctx context.Context, digest string) (io.ReadCloser, error) {
	return i.objects.openObject(ctx, protocol.BucketImageFiles, digest)
}

// WantImage asks hosts to get an image. The image replaces an earlier wanted image of the same name.
func (i *ImageStore) WantImage(ctx context.Context, want *protocol.WantedImage) error {
	want.Version = protocol.Version
	_, err := i.kv(protocol.BucketImages).put(ctx, wantKey(want.Ref), protocol.Encode(want), anySequence)
	return err
}

// UnwantImage asks hosts to remove an imported image, and removes the image's file. Error: not_found.
func (i *ImageStore) UnwantImage(ctx context.Context, ref string) error {
	b := i.kv(protocol.BucketImages)
	value, revision, err := b.get(ctx, wantKey(ref))
	if err == nil && value == nil || protocol.CodeOf(err) == protocol.NotFound {
		return protocol.Errorf(protocol.NotFound, protocol.ReasonImageNotFound, "no image %s was imported", ref)
	}
	if err == nil {
		err = b.remove(ctx, wantKey(ref), int64(revision))
	}
	var want protocol.WantedImage
	if err == nil && protocol.Decode(value, &want) == nil {
		err = i.removeFile(ctx, want.Digest, 0)
	}
	return err
}

// removeFile removes a file that has at least this age and that no wanted image refers to. If another process stores
// the file again at the same time, for a new image, the file's entry changes and the file stays.
func (i *ImageStore) removeFile(ctx context.Context, digest string, age time.Duration) error {
	info, sequence, err := i.objects.objectAt(ctx, protocol.BucketImageFiles, digest)
	if err != nil || info == nil || !i.hasAge(info.ModTime, age) {
		return err
	}
	// The leader lists the wanted images. A replica may be behind: it may not know yet that this image is wanted.
	wanted, err := (&wantedList{ImageStore: i}).list(ctx)
	if err != nil {
		return err
	}
	for _, w := range wanted {
		if w.Digest == digest {
			return nil
		}
	}
	if err := i.objects.removeObject(ctx, info, sequence); err != ErrConflict {
		return err
	}
	return nil
}

func (i *ImageStore) imageFiles(ctx context.Context) (jetstream.ObjectStore, error) {
	ctx, cancel := i.bound(ctx)
	defer cancel()
	store, err := i.js.ObjectStore(ctx, protocol.BucketImageFiles)
	return store, translate(err, "open "+protocol.BucketImageFiles)
}

// RemoveUnwantedFiles removes the files of replaced images and the remains of interrupted imports, if they are older
// than age. Callers normally pass [UnwantedAge].
func (i *ImageStore) RemoveUnwantedFiles(ctx context.Context, age time.Duration) error {
	store, err := i.imageFiles(ctx)
	if err != nil {
		return err
	}
	files, err := store.List(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return translate(err, "list the files of images")
	}
	complete := map[string]bool{}
	for _, f := range files {
		complete[f.NUID] = true
		if i.hasAge(f.ModTime, age) {
			if err := i.removeFile(ctx, f.Name, age); err != nil {
				return err
			}
		}
	}
	return i.objects.eachPart(ctx, protocol.BucketImageFiles, complete, func(id string, _ uint64, last *stored) error {
		if !i.hasAge(last.time, age) {
			return nil
		}
		return i.objects.purgeChunks(protocol.BucketImageFiles, id)
	})
}

// Images reads the wanted images and each worker's report about the images of its host.
func (i *ImageStore) Images(ctx context.Context) (
	wanted []*protocol.WantedImage, hosts []*protocol.HostImages, err error,
) {
	err = i.readAll(ctx, i.kv(protocol.BucketImages), func(key string, value []byte) {
		switch {
		case strings.HasPrefix(key, wantPrefix):
			if w := i.wanted(key, value); w != nil {
				wanted = append(wanted, w)
			}
		case strings.HasPrefix(key, hostPrefix):
			if h := i.hostImages(key, value); h != nil {
				hosts = append(hosts, h)
			}
		}
	})
	return wanted, hosts, err
}

func (i *ImageStore) wanted(key string, value []byte) *protocol.WantedImage {
	w := &protocol.WantedImage{}
	if err := protocol.Decode(value, w); err != nil || wantKey(w.Ref) != key {
		i.log.Error("could not decode a wanted image", "key", key, "error", err)
		return nil
	}
	return w
}

func (i *ImageStore) hostImages(key string, value []byte) *protocol.HostImages {
	h := &protocol.HostImages{}
	if err := protocol.Decode(value, h); err != nil || hostPrefix+h.Worker != key {
		i.log.Error("could not decode a worker's report about the images of its host", "key", key, "error", err)
		return nil
	}
	return h
}

// FollowHostImages calls handle for each worker's report about the images of its host and for each change, until ctx
// ends. report is nil for a worker that was forgotten.
func (i *ImageStore) FollowHostImages(
	ctx context.Context, handle func(worker string, report *protocol.HostImages),
) error {
	return i.kv(protocol.BucketImages).followKeys(ctx, hostPrefix+">", func(key string, value []byte, _ uint64) {
		if value == nil {
			handle(strings.TrimPrefix(key, hostPrefix), nil)
		} else if h := i.hostImages(key, value); h != nil {
			handle(h.Worker, h)
		}
	}, nil)
}

// FollowWantedImages calls handle for every wanted image and for each change, until ctx ends. key identifies the image.
// want is nil if the image is no longer wanted.
func (i *ImageStore) FollowWantedImages(ctx context.Context, handle func(key string, want *protocol.WantedImage),
	caughtUp func()) error {
	return i.kv(protocol.BucketImages).followKeys(ctx, wantPrefix+">", func(key string, value []byte, _ uint64) {
		if value == nil {
			handle(key, nil)
		} else if w := i.wanted(key, value); w != nil {
			handle(key, w)
		}
	}, caughtUp)
}

// PublishImages publishes which images a worker's host has.
func (i *ImageStore) PublishImages(ctx context.Context, h *protocol.HostImages) error {
	h.Version = protocol.Version
	_, err := i.kv(protocol.BucketImages).put(ctx, hostPrefix+h.Worker, protocol.Encode(h), anySequence)
	return err
}

// ForgetImages removes the report of a worker whose host was forgotten.
func (i *ImageStore) ForgetImages(ctx context.Context, worker string) error {
	return i.kv(protocol.BucketImages).remove(ctx, hostPrefix+worker, anySequence)
}
