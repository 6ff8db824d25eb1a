package jetstream_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestTheTableOfHostsIsFollowedAndANameBelongsToOneHost(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		name := d.tenant + "-w"
		heard := make(chan *protocol.Host, 10)
		must(t, c.RegisterHost(ctx, &protocol.Host{Worker: name, HostID: "h1", Slots: 1}))
		caughtUp := make(chan struct{})
		other := d.opened(t)
		background(t, func(ctx context.Context) error {
			return other.FollowHosts(ctx, func(worker string, h *protocol.Host, _ uint64) {
				if worker == name {
					heard <- h
				}
			}, func() { close(caughtUp) })
		})
		receive(t, 5*time.Second, "the call of caughtUp", caughtUp)
		if h := receive(t, time.Second, "the existing entry", heard); h.Slots != 1 {
			t.Fatalf("the existing entry is %+v, want one slot", h)
		}
		must(t, c.RegisterHost(ctx, &protocol.Host{Worker: name, HostID: "h1", Slots: 2}))
		if h := receive(t, 5*time.Second, "the changed entry", heard); h.Slots != 2 {
			t.Fatalf("the changed entry is %+v, want two slots", h)
		}
		err := other.RegisterHost(ctx, &protocol.Host{Worker: name, HostID: "h2"})
		wantError(t, err, protocol.AlreadyExists, protocol.ReasonHostHeld)
		must(t, c.ForgetHost(ctx, name))
		if h := receive(t, 5*time.Second, "the removal", heard); h != nil {
			t.Fatalf("the removed entry is %+v, want nil", h)
		}
		must(t, other.RegisterHost(ctx, &protocol.Host{Worker: name, HostID: "h2"}))
	})
}

func TestAHeartbeatOnAnotherWorkersSubjectIsIgnored(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, name := d.opened(t), d.tenant+"-w"
		heard := make(chan *protocol.Heartbeat, 10)
		stop, err := d.opened(t).Heartbeats(func(h *protocol.Heartbeat) {
			if h.Worker == name {
				heard <- h
			}
		})
		must(t, err)
		defer stop()
		nc := d.raw(t)
		eventually.Holds(t, 5*time.Second, "a heartbeat is received", func() bool {
			forged := protocol.Encode(&protocol.Heartbeat{Version: 1, Worker: name, Listening: 666})
			must(t, nc.Publish(protocol.HeartbeatSubject("other"), forged))
			must(t, nc.Flush())
			must(t, c.Beat(&protocol.Heartbeat{Worker: name, Listening: 3}))
			select {
			case h := <-heard:
				if h.Listening != 3 {
					t.Fatalf("received the forged heartbeat %+v", h)
				}
				return true
			default:
				return false
			}
		})
	})
}

func TestABlobReadsAsItWasStored(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		content := make([]byte, 20<<20)
		_, _ = rand.Read(content) // never fails
		sum := sha256.Sum256(content)
		digest := "sha256-" + hex.EncodeToString(sum[:])
		if there, err := c.HasBlob(ctx, "default", digest); there || err != nil {
			t.Fatal(there, err)
		}
		_, err := c.Blob(ctx, "default", digest)
		wantError(t, err, protocol.NotFound, "")
		must(t, c.PutBlob(ctx, "default", digest, bytes.NewReader(content)))
		if there, err := c.HasBlob(ctx, "default", digest); !there || err != nil {
			t.Fatal(there, err)
		}
		r, err := d.opened(t).Blob(ctx, "default", digest)
		must(t, err)
		defer r.Close()
		first := make([]byte, 1<<20)
		_, err = io.ReadFull(r, first)
		must(t, err)
		// The same tree is uploaded again while it is being read.
		must(t, c.PutBlob(ctx, "default", digest, bytes.NewReader(content)))
		rest, err := io.ReadAll(r)
		must(t, err)
		if !bytes.Equal(append(first, rest...), content) {
			t.Fatalf("read %d bytes of %d, or different ones", len(first)+len(rest), len(content))
		}
	})
}
