package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// outageOfNATS is the outage that every stream survives. Streams may end with an outage of their worker.
const outageOfNATS = "nats"

// outages are what happens in the middle of streams.
var outages = map[string]func(f *fleet.Fleet){
	outageOfNATS: (*fleet.Fleet).RestartServer,
	"worker": func(f *fleet.Fleet) {
		w := f.Processes("worker")[0]
		w.Kill()
		w.Restart()
	},
}

// wantSurvived checks how a stream through an outage ended: well, or with a typed error if its worker was killed.
func wantSurvived(t *testing.T, what, outage string, err error) {
	t.Helper()
	if wantTyped(t, err); err != nil && outage == outageOfNATS {
		t.Errorf("%s ended with an outage of NATS: %v", what, err)
	}
}

// strike is an outage in the middle of one transfer.
type strike struct {
	size   int64 // bytes that the transfer carries
	outage func()
	once   sync.Once
	at     atomic.Int64 // bytes that were carried when the outage began
}

func strikes(f *fleet.Fleet, size int64, outage func(f *fleet.Fleet)) *strike {
	return &strike{size: size, outage: func() { outage(f) }}
}

// carried causes the outage when more than half of the bytes have been carried.
func (s *strike) carried(done, _ int64) {
	if done > s.size/2 {
		s.once.Do(func() {
			s.at.Store(done)
			s.outage()
		})
	}
}

// wantStruck fails the test if the outage did not happen in the middle.
func (s *strike) wantStruck(t *testing.T, what string) {
	t.Helper()
	if at := s.at.Load(); at == 0 || at >= s.size {
		t.Fatalf("the outage did not happen in the middle of %s: %d of %d bytes had been carried", what, at, s.size)
	}
}

// struckReader is a reader that tells a strike how much was read.
type struckReader struct {
	io.Reader
	read   int64
	strike *strike
}

func (r *struckReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read += int64(n)
	r.strike.carried(r.read, r.strike.size)
	return n, err
}

// streamsThrough is how many streams of one kind are open during an outage. A leak in each of them exceeds what a
// worker keeps.
const streamsThrough = 20

// heldBytes is the size of a file that fits into no window, so that a stream that carries it stays open.
const heldBytes = protocol.MaxStreamWindow + 1<<20

// holdFile makes the file that [boxed.hold] reads, and reads it once. It returns the hash of the file.
func (b boxed) holdFile(ctx context.Context, t *testing.T) (sum []byte) {
	t.Helper()
	hash := sha256.New()
	from := io.LimitReader(&numbers{}, heldBytes)
	if _, err := b.Write(ctx, "/var/held", io.TeeReader(from, hash)); err != nil {
		t.Fatal(err)
	}
	r, err := b.Read(ctx, "/var/held")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := sha256.New()
	if _, err := io.Copy(got, r); err != nil || !bytes.Equal(got.Sum(nil), hash.Sum(nil)) {
		t.Fatalf("other bytes came back, %v", err)
	}
	return hash.Sum(nil)
}

// hold opens readers that do not read during an outage.
func (b boxed) hold(ctx context.Context, t *testing.T) (readers []*sdk.FileReader) {
	t.Helper()
	for range streamsThrough {
		r, err := b.Read(ctx, "/var/held")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		readers = append(readers, r)
	}
	return readers
}

// release reads the rest, and closes the readers.
func release(t *testing.T, outage string, readers []*sdk.FileReader, sum []byte) {
	t.Helper()
	for _, r := range readers {
		got := sha256.New()
		n, err := io.Copy(got, r)
		wantSurvived(t, "a reader that waited", outage, err)
		if err == nil && !bytes.Equal(got.Sum(nil), sum) {
			t.Errorf("other bytes came back, %d of %d", n, heldBytes)
		}
		r.Close()
	}
}
