package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/spec"
)

// Config says how a coordinator works.
type Config struct {
	Conn       *jetstream.Conn // required; the caller closes it
	Name       string          // of this coordinator, an id; required
	Build      string          // version shown by ping
	SyncAlways bool            // the server is embedded and writes to disk before it acknowledges

	// RestartStore restarts a NATS server of this process whose store refuses writes; nil where it is
	// another process's.
	RestartStore    func(context.Context) error
	CleanupTTL      time.Duration    // stopped and failed sandboxes are deleted, and histories of deleted ones purged, after this time; default 360 h
	HostForgetAfter time.Duration    // a host that has been lost for this time is forgotten; default 0: never
	Assets          jetstream.Assets // how the streams are made
	Defaults        spec.Defaults    // by tenant, below what its requests say
	OnReady         func()           // called once, when requests are taken; may be nil
	Logger          *slog.Logger     // default slog.Default

	// MaxActiveExecs is how many execs of a sandbox may not have ended; one more is refused. 1 to
	// [protocol.MaxActiveExecs]; default 1000.
	MaxActiveExecs int

	// Histories says when older parts of histories leave the event log.
	Histories Histories

	// Output says how much output is kept of one sandbox, and of one tenant.
	Output OutputBudget

	// OnState is called with whether the coordinator works, and in a few words with what it does or waits for,
	// when that changes. It must not block, and may be nil.
	OnState func(well bool, text string)

	// Timing is for tests; the zero value means the defaults.
	Timing Timing
	// Probe is called at named points of the work, for tests that crash there. It may be nil.
	Probe func(point string)

	made func(*coordinator) // for tests that look into it
}

// Timing holds the periods of the parts that watch over others.
type Timing struct {
	Scan     time.Duration // between two looks at what is owed; default 1 s
	Suspect  time.Duration // without a heartbeat a host gets no new work, and may be lost; default 5 s
	Retell   time.Duration // a worker is told again what it owes; default 5 s
	Seize    time.Duration // between two tries to take a silent host's lock; default 3 s
	Snapshot time.Duration // between two rounds of snapshots; default 30 s
	Abandon  time.Duration // a reservation without a history is ended; default 60 s
	Image    time.Duration // an image that may not be pulled, and nobody has or brings, is waited for; default 30 s
	Unwanted time.Duration // the file of an image that nobody wants is kept; default 24 h
	Overdue  time.Duration // beyond its own deadline, an exec or create is ended for its worker; default 60 s
	Keep     time.Duration // how long a forgotten host is remembered at least; default 1 hour
	Compact  time.Duration // between two looks for long histories; default 1 min
	Output   time.Duration // between two looks at how much output is kept; default 1 s
	Fresh    time.Duration // a read waits for the log, and is then answered from memory; default 1 s
}

func (t *Timing) setDefaults() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&t.Scan, time.Second}, {&t.Suspect, 5 * time.Second}, {&t.Retell, 5 * time.Second}, {&t.Seize, 3 * time.Second},
		{&t.Snapshot, 30 * time.Second}, {&t.Abandon, time.Minute}, {&t.Image, 30 * time.Second}, {&t.Overdue, time.Minute}, {&t.Keep, time.Hour},
		{&t.Unwanted, jetstream.UnwantedAge}, {&t.Fresh, time.Second}, {&t.Compact, time.Minute}, {&t.Output, time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
}

// coordinator is one running coordinator.
type coordinator struct {
	cfg        Config
	conn       *jetstream.Conn
	log        *slog.Logger
	projection *projection
	hosts      *hosts
	images     *hostImages
	elected    elected
	started    time.Time
	reserved   atomic.Pointer[allReserved] // nil: not known
	hostsRead  []signal                    // when all are given, the tables of hosts and of what operators want of them were read
	hostTable  hostTable
	seen       seenHosts
	unstarted  *unstarted                   // the watchdog's own
	overdue    *unstarted                   // the watchdog's own: execs that run on after their own deadline
	moves      moves                        // the watchdog's own
	compacting atomic.Pointer[key]          // the history that is being compacted
	budget     atomic.Pointer[outputKeeper] // nil: this coordinator does not lead
	keeping    sync.Mutex                   // what is kept beside the log of a sandbox is written, or purged

	gate             *gate
	refusals         refusals
	told             atomic.Pointer[protocol.Error] // what clients were told last
	deciding, ending chan struct{}                  // slots of requests in decision
	getting, listing readSlots                      // of reads of past execs
	paging           readSlots                      // of reads of events and output
}

// Run provisions the streams, and waits for NATS with that for as long as it takes. Then it serves until ctx
// ends: it takes no new requests, finishes those in hand, and gives the scheduler's lock up. It returns nil
// after such an end.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Conn == nil {
		return protocol.Invalid("conn", "must be set")
	}
	if err := protocol.ValidateID("name", cfg.Name); err != nil {
		return err
	}
	if err := cfg.Defaults.Validate(); err != nil {
		return err
	}
	if cfg.MaxActiveExecs == 0 {
		cfg.MaxActiveExecs = protocol.DefaultActiveExecs
	}
	if cfg.MaxActiveExecs < 1 || cfg.MaxActiveExecs > protocol.MaxActiveExecs {
		return protocol.Invalid("coordinator.max_active_execs", "must be 1 to %d, got %d", protocol.MaxActiveExecs, cfg.MaxActiveExecs)
	}
	if err := cfg.Histories.setDefaults(); err != nil {
		return err
	}
	if err := cfg.Output.check(); err != nil {
		return err
	}
	if cfg.CleanupTTL == 0 {
		cfg.CleanupTTL = 360 * time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = seldom.Logger(cfg.Logger)
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	if cfg.OnState == nil {
		cfg.OnState = func(bool, string) {}
	}
	if cfg.HostForgetAfter < 0 {
		return protocol.Invalid("coordinator.host_forget_after", "must not be negative, got %s", cfg.HostForgetAfter)
	}
	cfg.Timing.setDefaults()
	c := &coordinator{cfg: cfg, conn: cfg.Conn, log: cfg.Logger.With("coordinator", cfg.Name), started: time.Now()}
	c.cfg.OnState(false, "waits for NATS to have the streams")
	if err := c.conn.Provision(ctx, cfg.Assets); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c.cfg.OnState(false, "reads the log")
	c.projection = newProjection(c.conn, c.log, cfg.Name, cfg.Timing.Fresh)
	c.projection.look = func(b *protocol.Sandbox) time.Time { return nextLook(b, cfg.Timing.Overdue, cfg.CleanupTTL) }
	c.hosts = newHosts(cfg.Timing, c.projection)
	c.images = newHostImages(c.projection.wakeUp)
	c.gate = newGate(c.conn, c.tellWaiting)
	c.deciding, c.ending = make(chan struct{}, restAtOnce), make(chan struct{}, endingAtOnce)
	c.getting, c.listing, c.paging = make(readSlots, getsAtOnce), make(readSlots, listsAtOnce), make(readSlots, pagesAtOnce)
	if cfg.made != nil {
		cfg.made(c)
	}
	err := c.run(ctx)
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func (c *coordinator) run(ctx context.Context) error {
	// Work items may have been lost with the servers that were away, and heartbeats were.
	defer c.conn.OnReconnect(c.hosts.reconnected)()
	group, ctx := errgroup.WithContext(ctx)
	log, hosts, imports, wishes := newSignal(), newSignal(), newSignal(), newSignal()
	c.hostsRead = []signal{hosts, wishes}
	group.Go(func() error {
		from := uint64(0) // the snapshots are to be read yet
		return c.again(ctx, "follow the log", func() (err error) {
			if from == 0 {
				if from, err = c.projection.restore(ctx); err != nil {
					return err
				}
				group.Go(func() error {
					return c.again(ctx, "read what is over", func() error { return c.projection.readOver(ctx) })
				})
			}
			return c.projection.follow(ctx, &from, log.give)
		})
	})
	group.Go(func() error {
		return c.again(ctx, "hear what is stored of execs", func() error { return c.projection.execs.Follow(ctx) })
	})
	group.Go(func() error { return c.hosts.listen(ctx, c.conn) })
	group.Go(func() error { return c.conn.WatchStore(ctx, c.cfg.RestartStore) })
	group.Go(func() error {
		c.cfg.Probe("before-hosts")
		return c.again(ctx, "follow the table of hosts", func() error { return c.conn.FollowHosts(ctx, c.hosts.follow, hosts.give) })
	})
	group.Go(func() error {
		return c.again(ctx, "follow what hosts say of images", func() error { return c.images.follow(ctx, c.conn) })
	})
	group.Go(func() error {
		c.cfg.Probe("before-imports")
		return c.again(ctx, "follow what is imported", func() error { return c.images.followImports(ctx, c.conn, imports.give) })
	})
	group.Go(func() error {
		return c.again(ctx, "follow what operators want of hosts", func() error { return c.conn.FollowHostWishes(ctx, c.hosts.wish, wishes.give) })
	})
	if !await(ctx, log) {
		return group.Wait()
	}
	serving := newSignal()
	group.Go(func() error {
		return c.again(ctx, "serve reads", func() error {
			return c.conn.ServeReads(ctx, semver(c.cfg.Build), c.byName(c.endpoints()), serving.give)
		})
	})
	if !await(ctx, serving) {
		return group.Wait()
	}
	c.cfg.OnState(true, standsBy)
	group.Go(func() error { return c.forgetPurged(ctx) })
	queue := c.conn.Requests()
	group.Go(func() error { return queue.Consume(ctx, c.handle) })
	group.Go(func() error {
		return c.gate.run(ctx, func(ctx context.Context) {
			if sleep(ctx, endingPause) {
				_ = queue.ConsumeEnding(ctx, c.handle) // returns when ctx ends
			}
		})
	})
	group.Go(func() error {
		// Half a table of hosts may lack the only one that would take a sandbox, which is then failed.
		if !await(ctx, hosts, imports, wishes) {
			return ctx.Err()
		}
		return c.campaign(ctx)
	})
	c.log.Info("coordinator is ready", "deployment", c.conn.Deployment())
	if c.cfg.OnReady != nil {
		c.cfg.OnReady()
	}
	return group.Wait()
}

// tellWaiting says to everybody that no creates and execs are decided now, and why; nil: they are.
func (c *coordinator) tellWaiting(why *protocol.Error) {
	if before := c.told.Swap(why); (before == nil) != (why == nil) || why != nil && before.Reason != why.Reason {
		if why != nil {
			c.log.Warn("requests wait", "error", why)
		} else {
			c.log.Info("requests are decided again")
		}
	}
	s := &protocol.Status{Version: protocol.Version, Coordinator: c.cfg.Name, Waiting: why, Time: c.conn.Now()}
	if err := c.conn.TellStatus(s); err != nil {
		c.log.Debug("clients are not told what requests wait for", "error", err)
	}
}

// signal is something that happens once, and may be said again.
type signal struct {
	given chan struct{}
	give  func()
}

func newSignal() signal {
	given := make(chan struct{})
	return signal{given, sync.OnceFunc(func() { close(given) })}
}

// await waits until all signals were given; false for the end of ctx.
func await(ctx context.Context, signals ...signal) bool {
	for _, s := range signals {
		select {
		case <-s.given:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// again runs something that should run until ctx ends, or until it is done, and runs it again when it fails.
func (c *coordinator) again(ctx context.Context, what string, f func() error) error {
	for {
		err := f()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return nil
		}
		c.log.Warn("trying again", "what", what, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
