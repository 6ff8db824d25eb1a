package jetstream_test

import (
	"context"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// told is one work item, as a worker hears it.
type told struct {
	tenant, sandbox string
	batch           *protocol.Batch
}

func consumeWork(t testing.TB, c *jetstream.Conn, worker string) <-chan told {
	t.Helper()
	heard := make(chan told, 100)
	background(t, func(ctx context.Context) error {
		return c.ConsumeWork(ctx, worker, func(tenant, sandbox string, b *protocol.Batch) { heard <- told{tenant, sandbox, b} })
	})
	return heard
}

func TestWorkIsCoalescedPerSandboxAndHeardByItsWorkerOnly(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		one, two := d.tenant+"-1", d.tenant+"-2"
		readySandbox(t, c, d.tenant, "s1")
		_, batches := judge(t, c, d.tenant, "s1")
		for range 5 {
			must(t, c.TellAbout(one, d.tenant, "s1"))
		}
		must(t, c.Tell(one, batches[0])) // the newest says the most
		must(t, c.TellAbout(two, d.tenant, "s2"))
		must(t, c.Flush(ctx))
		js, err := natsjs.New(d.raw(t))
		must(t, err)
		eventually(t, 5*time.Second, "one message per sandbox", func() bool {
			stream, err := js.Stream(ctx, protocol.StreamWork)
			must(t, err)
			info, err := stream.Info(ctx, natsjs.WithSubjectFilter(protocol.WorkSubject(one, "*", "*")))
			must(t, err)
			return info.State.Subjects[protocol.WorkSubject(one, d.tenant, "s1")] == 1
		})
		heardOne, heardTwo := consumeWork(t, d.opened(t), one), consumeWork(t, d.opened(t), two)
		w := receive(t, 5*time.Second, "the first worker's", heardOne)
		if w.tenant != d.tenant || w.sandbox != "s1" || w.batch == nil || w.batch.Record != batches[0].Record || w.batch.Events[0].Record != batches[0].Record {
			t.Fatalf("%+v", w)
		}
		if w := receive(t, 5*time.Second, "the second worker's", heardTwo); w.sandbox != "s2" || w.batch != nil {
			t.Fatalf("%+v", w)
		}
		select {
		case w := <-heardOne:
			t.Fatalf("the first worker hears %+v too", w)
		case w := <-heardTwo:
			t.Fatalf("the second worker hears %+v too", w)
		default:
		}
	})
}

func TestWorkToldWhileAWorkerWasAwayIsHeardWhenItIsBack(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, worker := d.opened(t), d.tenant+"-w"
		first := d.opened(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		heard := make(chan string, 1)
		go func() {
			done <- first.ConsumeWork(ctx, worker, func(_, sandbox string, _ *protocol.Batch) { heard <- sandbox })
		}()
		must(t, c.TellAbout(worker, d.tenant, "s1"))
		receive(t, 5*time.Second, "the first", heard)
		cancel()
		<-done
		first.Close()
		must(t, c.TellAbout(worker, d.tenant, "s2"))
		must(t, c.Flush(t.Context()))
		back := time.Now()
		if w := receive(t, 6*time.Second, "the second", consumeWork(t, d.opened(t), worker)); w.sandbox != "s2" {
			t.Fatalf("%+v", w)
		}
		t.Logf("heard %s after the worker's return", time.Since(back))
	})
}

func TestAWorkItemThatIsNotOfItsSandboxOnlyWakesIt(t *testing.T) {
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
	heard := consumeWork(t, c, "w1")
	for name, item := range map[string]any{
		"of another sandbox":     &protocol.WorkItem{Version: protocol.Version, Batch: other},
		"without events":         &protocol.WorkItem{Version: protocol.Version, Batch: empty},
		"of a newer version":     &protocol.WorkItem{Version: protocol.Version, Batch: newer},
		"in a newer envelope":    &protocol.WorkItem{Version: protocol.Version + 1, Batch: good},
		"with a gap":             &protocol.WorkItem{Version: protocol.Version, Batch: gap},
		"that is something else": "x",
	} {
		_, err := nc.Request(protocol.WorkSubject("w1", d.tenant, "s1"), protocol.Encode(item), 5*time.Second)
		must(t, err)
		if w := receive(t, 5*time.Second, "the item "+name, heard); w.sandbox != "s1" || w.batch != nil {
			t.Errorf("an item %s: %+v", name, w)
		}
	}
	_, err := nc.Request(protocol.WorkSubject("w1", d.tenant, "s1"), protocol.Encode(&protocol.WorkItem{Version: protocol.Version, Batch: good, Record: 9}), 5*time.Second)
	must(t, err)
	w := receive(t, 5*time.Second, "the good item", heard)
	for w.batch == nil { // the others come twice: as they are published, and from the queue
		w = receive(t, 5*time.Second, "the good item", heard)
	}
	if w.batch.Record != 9 {
		t.Fatalf("%+v", w)
	}
}
