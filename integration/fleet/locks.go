package fleet

import (
	"context"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Tenure is one write to a host's lock that the server accepted. The write acquires or renews the lock or, without a
// holder, releases it.
type Tenure struct {
	Key      string
	Revision uint64
	Time     time.Time // the server's time of the write
	Holder   jetstream.Holder
}

// Locks records who held which host's lock and when. It reads the lock's stream on the NATS server. Tests use it to
// check whether a worker was allowed to change its host.
type Locks struct {
	mu      sync.Mutex
	tenures []Tenure
}

// WatchLocks records the locks until the test ends.
func (f *Fleet) WatchLocks() *Locks {
	f.TB.Helper()
	nc, err := f.NATS("lock recorder")
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
		return // not a message of the stream
	}
	t := Tenure{Key: m.Subject(), Revision: meta.Sequence.Stream, Time: meta.Timestamp}
	if len(m.Data()) > 0 {
		_ = protocol.Decode(m.Data(), &t.Holder) // a release has no holder
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenures = append(l.tenures, t)
}

// Of lists the writes of the worker or coordinator with this name.
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

// Held reports whether the worker certainly held the lock at that moment: less than ttl had passed since the server
// accepted the worker's last write. The worker itself relies on the lock for two thirds of that time. The last third is
// for requests in flight, so a request that arrives during the last third breaks no rule.
func (l *Locks) Held(name string, at time.Time, ttl time.Duration) bool {
	for _, t := range l.Of(name) {
		if since := at.Sub(t.Time); since >= 0 && since < ttl {
			return true
		}
	}
	return false
}
