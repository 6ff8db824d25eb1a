package jetstream

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// Workers have no right to consumers, because a consumer can deliver messages to any subject. A worker hears what
// operators publish to the keys of wanted images. Such a message may be lost, refused, or not be stored yet. So the
// worker ignores the content of the message, and reads the list from the leader again.

const (
	// wantedCheck is the longest time before a worker compares its list with the bucket.
	wantedCheck = time.Minute
	// Workers hear of a change a moment before it is stored. They read the list again and again, first after wantedFirst,
	// with pauses that double up to wantedMost.
	wantedFirst = 5 * time.Millisecond
	wantedMost  = time.Second
)

// wantedList reads the list of wanted images.
type wantedList struct {
	*ImageStore

	known bool      // the list was read at least once
	last  uint64    // sequence of the newest message when the list was last read; 0: none
	at    time.Time // when that message was stored; a bucket that was made again reuses sequences
}

// WantedImages calls handle with all wanted images, and again after each change, until ctx ends. Unlike
// [ImageStore.FollowWantedImages] it needs no consumer. Errors: the errors of reads.
func (i *ImageStore) WantedImages(ctx context.Context, handle func([]*protocol.WantedImage)) error {
	heard := wake.New()
	keys := i.kv(protocol.BucketImages).subject(wantPrefix + "*")
	sub, err := i.nc.Subscribe(keys, func(*nats.Msg) { heard.Wake() })
	if err != nil {
		return translate(err, "listen for wanted images")
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only while the connection is being closed
	defer i.OnReconnect(heard.Wake)()
	l := &wantedList{ImageStore: i}
	for {
		if err := l.read(ctx, handle); err != nil {
			return err
		}
		check := time.NewTimer(wantedCheck)
		select {
		case <-ctx.Done():
			check.Stop()
			return ctx.Err()
		case <-check.C:
		case <-heard:
			check.Stop()
			if err := l.await(ctx, handle, heard); err != nil {
				return err
			}
		}
	}
}

// await reads the list again and again, for as long as the storing of the announced change may take.
func (l *wantedList) await(ctx context.Context, handle func([]*protocol.WantedImage), heard wake.Signal) error {
	for pause := wantedFirst; pause <= wantedMost; pause *= 2 {
		if err := l.read(ctx, handle); err != nil {
			return err
		}
		select {
		case <-heard:
			pause = wantedFirst
		default:
		}
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return nil
}

// read calls handle if the list has changed since it was last read.
func (l *wantedList) read(ctx context.Context, handle func([]*protocol.WantedImage)) error {
	err := l.readNew(ctx, handle)
	if l.known && isReason(err, protocol.ReasonNotProvisioned) {
		return nil // the bucket is being made again
	}
	return err
}

func (l *wantedList) readNew(ctx context.Context, handle func([]*protocol.WantedImage)) error {
	for {
		last, at, err := l.newest(ctx)
		if err != nil || l.known && last == l.last && at.Equal(l.at) {
			return err
		}
		list, err := l.list(ctx)
		if err != nil {
			return err
		}
		handle(list)
		l.known, l.last, l.at = true, last, at
	}
}

// newest reads the sequence and time of the newest message about a wanted image: 0 if there is none.
func (l *wantedList) newest(ctx context.Context) (sequence uint64, at time.Time, err error) {
	b := l.kv(protocol.BucketImages)
	m, err := l.lastOnSubject(ctx, b.stream(), b.subject(wantPrefix+"*"))
	if protocol.CodeOf(err) == protocol.NotFound {
		return 0, time.Time{}, nil
	}
	if err != nil {
		return 0, time.Time{}, err
	}
	return m.sequence, m.time, nil
}

// list reads all wanted images. If images are wanted or replaced while list reads, some may be missing in the result.
// The result of newest has then changed.
func (l *wantedList) list(ctx context.Context) (all []*protocol.WantedImage, err error) {
	b := l.kv(protocol.BucketImages)
	for from := uint64(1); ; {
		m, err := l.nextOnSubject(ctx, b.stream(), b.subject(wantPrefix+"*"), from)
		if protocol.CodeOf(err) == protocol.NotFound {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if from = m.sequence + 1; m.deleted() {
			continue
		}
		if w := l.wanted(b.key(m.subject), m.data); w != nil {
			all = slices.DeleteFunc(all, func(old *protocol.WantedImage) bool { return old.Ref == w.Ref })
			all = append(all, w)
		}
	}
}
