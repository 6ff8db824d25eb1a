package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Tenure is one write of a host's lock that the server took: an acquisition, a renewal, or, with
// no holder, a release.
type Tenure struct {
	Key      string
	Revision uint64
	Time     time.Time // of the server
	Holder   jetstream.Holder
}

// Locks records who held which host's lock when, from the server's own store: the judge of what a
// worker may do.
type Locks struct {
	mu      sync.Mutex
	tenures []Tenure
}

// WatchLocks records the locks from now on, until the test ends.
func (f *Fleet) WatchLocks() *Locks {
	f.TB.Helper()
	nc, err := nats.Connect(f.URL(), nats.Name("judge of locks"))
	if err != nil {
		f.TB.Fatal(err)
	}
	f.TB.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		f.TB.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	consumer, err := js.OrderedConsumer(ctx, "KV_"+protocol.BucketLocks, natsjs.OrderedConsumerConfig{})
	if err != nil {
		f.TB.Fatal(err)
	}
	l := &Locks{}
	following, err := consumer.Consume(l.note)
	if err != nil {
		f.TB.Fatal(err)
	}
	f.TB.Cleanup(following.Stop)
	return l
}

func (l *Locks) note(m natsjs.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		return // not from the stream
	}
	t := Tenure{Key: m.Subject(), Revision: meta.Sequence.Stream, Time: meta.Timestamp}
	if len(m.Data()) > 0 {
		_ = protocol.Decode(m.Data(), &t.Holder) // what cannot be read has no holder
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenures = append(l.tenures, t)
}

// Of lists the tenures of the worker, or the coordinator, of that name.
func (l *Locks) Of(name string) []Tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	var own []Tenure
	for _, t := range l.tenures {
		if t.Holder.Name == name {
			own = append(own, t)
		}
	}
	return own
}

// Held says whether the worker surely held the lock at a moment: less than its time to live had
// passed since the server took the worker's last write. The worker trusts it for two thirds of that
// only. The last third is for what was sent just before and is still on its way, so it is not the
// moment of arrival that can be held against the two thirds.
func (l *Locks) Held(name string, at time.Time, ttl time.Duration) bool {
	for _, t := range l.Of(name) {
		if since := at.Sub(t.Time); since >= 0 && since < ttl {
			return true
		}
	}
	return false
}
