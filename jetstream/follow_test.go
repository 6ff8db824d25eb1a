package jetstream_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// In a cluster a new consumer's first request for messages is occasionally lost. It must be repeated soon: the client
// itself would repeat it only after ten seconds.
func TestANewFollowerInAClusterCatchesUpSoon(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	readySandbox(t, d.opened(t), d.tenant, "s1")
	const clients, each = 12, 40
	var mu sync.Mutex
	var worst time.Duration
	var following sync.WaitGroup
	for range clients {
		c := d.opened(t)
		following.Go(func() {
			for range each {
				ctx, enough := context.WithTimeout(t.Context(), time.Minute)
				began, heard := time.Now(), 0
				_ = c.FollowEvents(ctx, 1, func(*protocol.Batch) { heard++ }, enough) // the function enough ends ctx
				enough()
				mu.Lock()
				worst = max(worst, time.Since(began))
				mu.Unlock()
				if heard == 0 {
					t.Error("a follower received no batch")
				}
			}
		})
	}
	following.Wait()
	t.Logf("the slowest of %d took %s", clients*each, worst.Round(time.Millisecond))
	if worst > 7*time.Second {
		t.Errorf("the slowest follower took %s, want at most 7 s", worst)
	}
}

// Without heartbeats a follower restarts with a new consumer. If its context ends during the restart, the follower must
// not follow the new consumer forever.
func TestAFollowerEndsWhileItRestarts(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	c := d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const followers = 50
	begun, ended := make(chan struct{}, followers), make(chan error, followers)
	for range followers {
		go func() {
			ended <- c.FollowEvents(ctx, 0, func(*protocol.Batch) {}, func() { begun <- struct{}{} })
		}()
	}
	for range followers {
		receive(t, 5*time.Second, "the start of a follower", begun)
	}
	nc := d.raw(t)
	asked, err := nc.SubscribeSync("$JS.API.CONSUMER.CREATE." + protocol.StreamEvents + ".>")
	must(t, err)
	must(t, nc.Flush())
	p.held.Lock()
	for range followers { // two heartbeats are missing: each follower requests a new consumer
		_, err := asked.NextMsg(10 * time.Second)
		must(t, err)
	}
	cancel()
	p.held.Unlock()
	for range followers {
		receive(t, 5*time.Second, "the end of a follower", ended)
	}
}

// The request for a new consumer, or the answer to this request, may be lost. At that moment the connection may break
// or stay open.
func TestARestartingFollowerDoesNotWaitForALostAnswer(t *testing.T) {
	t.Parallel()
	for name, heal := range map[string]func(p *proxy){
		"with its connection": func(p *proxy) { p.cut(); p.heal() },
		"by itself":           func(p *proxy) { p.heal() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startServer(t, jetstream.Assets{})
			p := throughProxy(t, d)
			c := d.connTo(t, p.url())
			must(t, c.Open(t.Context()))
			begun, heard := make(chan struct{}), make(chan uint64, 10)
			background(t, func(ctx context.Context) error {
				return c.FollowEvents(ctx, 0, func(b *protocol.Batch) { heard <- b.Record }, func() { close(begun) })
			})
			receive(t, 5*time.Second, "the start of a follower", begun)
			asked := make(chan struct{})
			p.whenClientSays(t, "$JS.API.CONSUMER.CREATE."+protocol.StreamEvents, func() { close(asked) })
			p.mute.Store(true)
			receive(t, 10*time.Second, "the request for a new consumer", asked)
			eventually.Holds(t, 5*time.Second, "the answer is lost", func() bool { return p.lostConsumers.Load() > 0 })
			heal(p)
			readySandbox(t, d.opened(t), d.tenant, "s1")
			// The client alone would wait for ten seconds and a little more.
			receive(t, 7*time.Second, "the new batch", heard)
		})
	}
}

// A process follows many streams. A lost connection is one line of its log, not one line for each stream.
func TestAFollowerWarnsOnlyIfItsConnectionIsNotTheCause(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	var log eventually.Buffer
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: p.url(),
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	must(t, err)
	t.Cleanup(c.Close)
	must(t, c.Open(t.Context()))
	begun := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return c.FollowEvents(ctx, 0, func(*protocol.Batch) {}, func() { close(begun) })
	})
	receive(t, 5*time.Second, "the start of a follower", begun)
	says := func(level string) bool {
		return strings.Contains(log.String(), "level="+level+` msg="following a stream was interrupted`)
	}
	p.cut()
	eventually.Holds(t, 20*time.Second, "the follower resumes", func() bool { return says("DEBUG") || says("WARN") })
	if says("WARN") {
		t.Errorf("a lost connection has a line for each stream:\n%s", log.String())
	}
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), protocol.StreamEvents)
	must(t, err)
	eventually.Holds(t, 20*time.Second, "the log warns of consumers that the server lost", func() bool {
		for name := range stream.ConsumerNames(t.Context()).Name() {
			_ = stream.DeleteConsumer(t.Context(), name) // the follower may have replaced it
		}
		return says("WARN")
	})
}

// Messages that expire or are purged before their delivery never arrive.
func TestAFollowerWaitingForPurgedMessagesCatchesUp(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	near, c := d.opened(t), d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	must(t, near.RegisterHost(t.Context(), &protocol.Host{Worker: "w1", HostID: "h1"}))
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), "KV_"+protocol.BucketWorkers)
	must(t, err)
	p.whenClientSays(t, "$JS.API.CONSUMER.MSG.NEXT.", func() {
		if err := stream.Purge(context.Background()); err != nil {
			t.Error(err)
		}
	})
	caughtUp := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return c.FollowHosts(
			ctx,
			func(worker string, _ *protocol.Host, _ uint64) { t.Errorf("%s was not purged", worker) },
			func() { close(caughtUp) },
		)
	})
	receive(t, 10*time.Second, "the call of caughtUp", caughtUp)
}

// A cluster may lose the first request for the messages of a new consumer.
func TestALostFirstRequestForMessagesIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	c := d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	lost := make(chan struct{})
	var once sync.Once
	lose := func(said []byte) []byte {
		const request, unknown = "PUB $JS.API.CONSUMER.MSG.NEXT.", "PUB $JS.API.CONSUMER.MSG.NONE."
		if bytes.Contains(said, []byte(request)) {
			once.Do(func() {
				said = bytes.ReplaceAll(said, []byte(request), []byte(unknown))
				close(lost)
			})
		}
		return said
	}
	p.fromClient.Store(&lose)
	heard := make(chan time.Time, 10)
	background(t, func(ctx context.Context) error {
		return c.FollowEvents(ctx, 0, func(*protocol.Batch) { heard <- time.Now() }, func() {})
	})
	receive(t, 10*time.Second, "the loss of the first request", lost)
	began := time.Now()
	readySandbox(t, d.opened(t), d.tenant, "s1")
	if late := receive(t, 10*time.Second, "the first batch", heard).Sub(began); late > 1500*time.Millisecond {
		t.Errorf("the first batch arrived %s after the request was lost; two missing heartbeats take 2 s", late)
	}
}

// The consumer's replica may be behind. If the replica lacks messages, it does not count them as pending.
func TestAFollowerWaitsForAReplicaThatIsBehind(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	c := d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	writeExecIDs(t, c, d.tenant, "s1", 0, []uint64{1})
	behind := make(chan struct{}, 10)
	p.whenServerSays(t, func(said []byte) []byte {
		if bytes.Contains(said, []byte(`"num_pending":1`)) {
			behind <- struct{}{}
		}
		return bytes.ReplaceAll(said, []byte(`"num_pending":1`), []byte(`"num_pending":0`))
	})
	read := 0
	must(t, c.ReadExecIDs(t.Context(), func(string, string, int, []uint64) { read++ }))
	if len(behind) == 0 {
		t.Fatal("no pending count was reported, so the test proves nothing")
	}
	if read != 1 {
		t.Fatalf("read %d pages, want 1", read)
	}
}

// A key that is written again during the read gets a sequence after the last one that the leader had at the start.
func TestAKeyWrittenAgainWhileItIsReadIsRead(t *testing.T) {
	t.Parallel()
	for range 10 { // a follower that does not wait for the key may still read it by chance
		d := startServer(t, jetstream.Assets{})
		p := throughProxy(t, d)
		near, c := d.opened(t), d.connTo(t, p.url())
		must(t, c.Open(t.Context()))
		writeExecIDs(t, near, d.tenant, "s1", 0, []uint64{1})
		writeExecIDs(t, near, d.tenant, "s2", 0, []uint64{2})
		again := make(chan error, 1)
		p.whenClientSays(t, "$JS.API.CONSUMER.CREATE.KV_"+protocol.BucketExecIDs, func() {
			_, err := near.WriteExecIDs(t.Context(), d.tenant, "s1", 0, []uint64{1, 11}, 0)
			again <- err
		})
		read := map[string]int{}
		must(
			t,
			c.ReadExecIDs(t.Context(), func(_, sandbox string, _ int, hashes []uint64) { read[sandbox] = len(hashes) }),
		)
		must(t, <-again)
		if len(read) != 2 {
			t.Fatalf("read the pages %v, want two", read)
		}
	}
}

// If the last message is lost on its way, no later message shows the gap. The follower must request it again.
func TestALostLastMessageIsReadAgain(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	near, c := d.opened(t), d.connTo(t, p.url())
	must(t, c.Open(t.Context()))
	writeExecIDs(t, near, d.tenant, "s1", 0, []uint64{1})
	lost := false
	p.whenServerSays(t, func(said []byte) []byte {
		i := bytes.Index(said, []byte("MSG $KV."+protocol.BucketExecIDs))
		if lost || i < 0 || !bytes.Contains(said, []byte("$JS.ACK")) {
			return said
		}
		lost = true
		if i > 0 && said[i-1] == 'H' {
			i--
		}
		return said[:i]
	})
	read := 0
	must(t, c.ReadExecIDs(t.Context(), func(string, string, int, []uint64) { read++ }))
	if !lost || read != 1 {
		t.Fatalf("read %d pages, want 1; the message was lost on its way: %t", read, lost)
	}
}

// A worker can store messages that are no batches. A new leader asks whether a batch is among the last messages of the
// log, and reads many such messages with each request.
func TestMessagesThatAreNoBatchesAreReadInPages(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, nc := d.opened(t), d.raw(t)
	readySandbox(t, c, d.tenant, "s1")
	last := func() uint64 {
		record, err := c.LastRecord(t.Context())
		must(t, err)
		return record
	}
	from := last()
	const garbage = 700
	for range garbage {
		_, err := nc.Request(protocol.AppendSubject("w1", d.tenant, "s1"), []byte("garbage"), 10*time.Second)
		must(t, err)
	}
	end := last()
	readySandbox(t, c, d.tenant, "s2")
	asked, err := nc.SubscribeSync("$JS.API.STREAM.MSG.GET." + protocol.StreamEvents)
	must(t, err)
	must(t, nc.Flush())
	for to, want := range map[uint64]bool{end: false, end + 1: true} {
		if more, err := c.BatchBetween(t.Context(), from, to); err != nil || more != want {
			t.Errorf("a batch between %d and %d: %t, %v", from, to, more, err)
		}
	}
	must(t, nc.Flush())
	if n, _, err := asked.Pending(); err != nil || n > 10 {
		t.Errorf("%d messages were read one by one, of %d: %v", n, garbage, err)
	}
}
