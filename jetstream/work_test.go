package jetstream_test

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// notification is a notification as a worker receives it.
type notification struct {
	tenant, sandbox string
	batch           *protocol.Batch
}

func listenForWork(t testing.TB, c *jetstream.Conn, worker string) <-chan notification {
	t.Helper()
	heard := make(chan notification, 100)
	stop, err := c.Work(worker, func(tenant, sandbox string, b *protocol.Batch) {
		heard <- notification{tenant, sandbox, b}
	})
	must(t, err)
	t.Cleanup(stop)
	must(t, c.Flush(t.Context()))
	return heard
}

func TestNotificationsReachOnlyTheirWorkerAndInOrder(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		one, two := d.tenant+"-1", d.tenant+"-2"
		readySandbox(t, c, d.tenant, "s1")
		_, batches := readHistory(t, c, d.tenant, "s1")
		heardOne, heardTwo := listenForWork(t, d.opened(t), one), listenForWork(t, d.opened(t), two)
		eventually.Holds(t, 5*time.Second, "every server knows the subscriptions", func() bool {
			must(t, c.NotifyWithoutBatch(one, d.tenant, "first"))
			must(t, c.NotifyWithoutBatch(two, d.tenant, "first"))
			must(t, c.Flush(t.Context()))
			return len(heardOne) > 0 && len(heardTwo) > 0
		})
		must(t, c.NotifyWithoutBatch(one, d.tenant, "s0"))
		must(t, c.Notify(one, batches[0]))
		must(t, c.NotifyWithoutBatch(two, d.tenant, "s2"))
		next := func(what string, heard <-chan notification) (w notification) {
			for w.sandbox == "" || w.sandbox == "first" {
				w = receive(t, 5*time.Second, what, heard)
			}
			return w
		}
		if w := next("the first worker's notification", heardOne); w.sandbox != "s0" || w.batch != nil {
			t.Fatalf("the first worker's notification is %+v, want one for s0 without a batch", w)
		}
		w := next("the first worker's second notification", heardOne)
		if w.tenant != d.tenant || w.sandbox != "s1" || w.batch == nil || w.batch.Record != batches[0].Record ||
			w.batch.Events[0].Record != batches[0].Record {
			t.Fatalf("the first worker's second notification is %+v, want one for s1 with its batch", w)
		}
		if w := next("the second worker's notification", heardTwo); w.sandbox != "s2" || w.batch != nil {
			t.Fatalf("the second worker's notification is %+v, want one for s2 without a batch", w)
		}
		select {
		case w := <-heardOne:
			t.Fatalf("the first worker also received %+v", w)
		case w := <-heardTwo:
			t.Fatalf("the second worker also received %+v", w)
		default:
		}
	})
}

func TestNoNotificationArrivesAfterStop(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	inHand, proceed, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	heard := 0
	stop, err := c.Work("w1", func(string, string, *protocol.Batch) {
		heard++
		close(inHand)
		<-proceed
	})
	must(t, err)
	must(t, c.NotifyWithoutBatch("w1", d.tenant, "s1"))
	must(t, c.NotifyWithoutBatch("w1", d.tenant, "s2"))
	receive(t, 5*time.Second, "the first notification", inHand)
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("stop returned while a notification was being handled")
	case <-time.After(50 * time.Millisecond):
	}
	close(proceed)
	receive(t, 5*time.Second, "the return of stop", stopped)
	if heard != 1 {
		t.Errorf("%d notifications were handled, want 1", heard)
	}
}

func TestAnInvalidWorkItemNotifiesWithoutABatch(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, nc := d.opened(t), d.raw(t)
	good := accepted(d.tenant, "s1", "k1")
	other := accepted("victim", "s1", "k1")
	empty := accepted(d.tenant, "s1", "k1")
	empty.Events = nil
	newer := accepted(d.tenant, "s1", "k1")
	newer.Version = protocol.Version + 1
	gap := accepted(d.tenant, "s1", "k1")
	gap.Events = append(gap.Events, protocol.Event{Sequence: 3, Kind: protocol.SandboxDeleteRequested})
	heard := listenForWork(t, c, "w1")
	for name, item := range map[string]any{
		"of another sandbox":     &protocol.WorkItem{Version: protocol.Version, Batch: other},
		"without events":         &protocol.WorkItem{Version: protocol.Version, Batch: empty},
		"of a newer version":     &protocol.WorkItem{Version: protocol.Version, Batch: newer},
		"in a newer envelope":    &protocol.WorkItem{Version: protocol.Version + 1, Batch: good},
		"with a gap":             &protocol.WorkItem{Version: protocol.Version, Batch: gap},
		"that is something else": "x",
	} {
		must(t, nc.Publish(protocol.WorkSubject("w1", d.tenant, "s1"), protocol.Encode(item)))
		if w := receive(t, 5*time.Second, "the work item "+name, heard); w.sandbox != "s1" || w.batch != nil {
			t.Errorf("a work item %s notified with %+v, want s1 without a batch", name, w)
		}
	}
	item := protocol.Encode(&protocol.WorkItem{Version: protocol.Version, Batch: good, Record: 9})
	must(t, nc.Publish(protocol.WorkSubject("w1", d.tenant, "s1"), item))
	if w := receive(t, 5*time.Second, "the valid work item", heard); w.batch == nil || w.batch.Record != 9 {
		t.Fatalf("a valid work item notified with %+v, want the batch of record 9", w)
	}
}
