package coordinator

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// coordinator holds the state that all parts of one running coordinator share. [requestHandler] and [reader] embed it.
// The parts that run only on the leading coordinator embed it through [leader].
type coordinator struct {
	cfg        Config
	conn       *jetstream.Conn
	log        *slog.Logger
	projection *projection
	hosts      *hosts
	images     *hostImages
	hostsRead  []signal // given once the tables of hosts and of operators' intents have been read
	hostTable  hostTable
	reads      *reader

	elected    elected
	reserved   atomic.Pointer[reservedThrough] // nil: unknown
	compacting atomic.Pointer[key]             // the history that is being compacted
	output     atomic.Pointer[outputKeeper]    // nil: this coordinator does not lead
	admitter   atomic.Pointer[admitter]        // nil: this coordinator does not lead
	quotas     quotas
	secrets    *secretTable
	condition  condition
	storing    sync.Mutex // held while stored copies of a sandbox's state are written or purged
}

// Run creates the streams, and then serves until ctx ends. While NATS is unavailable, it waits without a time limit.
// When ctx ends, it takes no new requests, finishes the requests in progress, releases the scheduler's lock, and
// returns nil.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	cfg.OnState(false, "waits for NATS to have the streams")
	if err := cfg.Conn.Provision(ctx, cfg.Assets); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := registerWriter(ctx, &cfg); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	cfg.OnState(false, "reads the log")
	c := newCoordinator(cfg)
	if cfg.made != nil {
		cfg.made(c)
	}
	err := c.run(ctx)
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// registerWriter registers the key with which the coordinator signs its messages. While NATS does not answer, it waits.
func registerWriter(ctx context.Context, cfg *Config) error {
	for {
		err := cfg.Conn.RegisterWriter(ctx, protocol.OwnerCoordinator, cfg.Name, "")
		if err == nil || !unavailable(err) {
			return err
		}
		cfg.Logger.Warn("waiting to register the coordinator's key", "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
	}
}

func newCoordinator(cfg Config) *coordinator {
	c := &coordinator{cfg: cfg, conn: cfg.Conn, log: cfg.Logger.With("coordinator", cfg.Name)}
	c.projection = newProjection(c.conn, c.log, cfg.Name, cfg.Timing.Fresh)
	c.conn.JudgeBy(c.projection.judge)
	c.projection.nextDeadline = func(b *protocol.Sandbox) time.Time {
		return nextDeadline(b, cfg.Timing.Overdue, cfg.CleanupTTL)
	}
	c.hosts = newHosts(cfg.Timing, c.projection)
	c.hosts.lockTTL = cmp.Or(cfg.Assets.LockTTL, c.hosts.lockTTL)
	c.images = newHostImages(c.projection.work.schedulerWake)
	c.secrets = newSecretTable()
	c.reads = newReader(c)
	c.quotas.own.Store(&cfg.quotas)
	c.condition.say = cfg.OnState
	return c
}

// run first reads and follows the stored data, then answers reads, then accepts requests, and finally campaigns to
// become the leader.
func (c *coordinator) run(ctx context.Context) error {
	// While the servers were away, notifications and heartbeats may have been lost.
	defer c.conn.OnReconnect(c.hosts.reconnected)()
	group, ctx := errgroup.WithContext(ctx)
	log, hosts, imports, intents := newSignal(), newSignal(), newSignal(), newSignal()
	c.hostsRead = []signal{hosts, intents}
	c.followLog(ctx, group, log)
	group.Go(func() error { return c.hosts.listen(ctx, c.conn) })
	group.Go(func() error { return c.conn.WatchStore(ctx, c.cfg.RestartStore) })
	group.Go(func() error { return c.watchQuotas(ctx) })
	c.followBuckets(ctx, group, hosts, imports, intents)
	if !await(ctx, log) {
		return group.Wait()
	}
	serving := newSignal()
	group.Go(func() error {
		return c.retry(ctx, "serve reads", func() error {
			about := jetstream.Description{Version: semver(c.cfg.Build), FleetKey: fleetKeySaid(c)}
			return c.conn.ServeReadsAs(ctx, about, c.reads.endpoints(), serving.give)
		})
	})
	if !await(ctx, serving) {
		return group.Wait()
	}
	group.Go(func() error {
		limits := jetstream.UploadLimits{MaxBytes: c.cfg.UploadMaxBytes, Room: c.roomFor}
		return c.retry(ctx, "receive uploads", func() error { return c.conn.ServeUploads(ctx, limits) })
	})
	secrets := newSignal()
	group.Go(func() error {
		return c.retry(ctx, "answer requests for secrets", func() error { return c.serveSecrets(ctx, secrets.give) })
	})
	if !await(ctx, secrets) {
		return group.Wait()
	}
	c.condition.change(func(s *condition) { s.serves = true })
	group.Go(func() error { return c.turnState(ctx) })
	group.Go(func() error { return c.followLost(ctx) })
	group.Go(func() error { return c.forgetPurged(ctx) })
	requests := newRequestHandler(c)
	group.Go(func() error { return requests.run(ctx) })
	group.Go(func() error {
		// With an incomplete table of hosts, the scheduler might fail a sandbox that a missing host would take.
		if !await(ctx, hosts, imports, intents) {
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

// followLog restores the projection and then follows the log. If the log was rewound, it restores the projection again.
// It gives the signal caughtUp when it has reached the end of the log.
func (c *coordinator) followLog(ctx context.Context, group *errgroup.Group, caughtUp signal) {
	group.Go(func() error {
		from := uint64(0) // 0: the snapshots have not been read yet
		return c.retry(ctx, "follow the log", func() (err error) {
			if from == 0 {
				if from, err = c.projection.restore(ctx); err != nil {
					return err
				}
				group.Go(func() error {
					return c.retry(ctx, "read deleted sandboxes", func() error { return c.projection.readDeleted(ctx) })
				})
			}
			return c.projection.follow(ctx, &from, caughtUp.give)
		})
	})
	group.Go(func() error {
		return c.retry(ctx, "follow the index of execs", func() error { return c.projection.execs.Follow(ctx) })
	})
}

// followBuckets follows the tables of hosts, images and imports, and the intents of operators. Each signal is given
// when its table has been read.
func (c *coordinator) followBuckets(ctx context.Context, group *errgroup.Group, hosts, imports, intents signal) {
	follow := func(what string, f func() error) {
		group.Go(func() error { return c.retry(ctx, what, f) })
	}
	group.Go(func() error {
		c.cfg.Probe("before-hosts")
		return c.retry(ctx, "follow the table of hosts", func() error {
			return c.conn.FollowHosts(ctx, c.hosts.follow, hosts.give)
		})
	})
	follow("follow the images of hosts", func() error { return c.images.follow(ctx, c.conn) })
	group.Go(func() error {
		c.cfg.Probe("before-imports")
		return c.retry(ctx, "follow imports", func() error { return c.images.followImports(ctx, c.conn, imports.give) })
	})
	follow("follow the secrets", func() error { return c.secrets.follow(ctx, c.conn) })
	follow("follow the intents of operators", func() error {
		return c.conn.FollowOperatorIntents(ctx, c.hosts.setIntent, intents.give)
	})
}

// signal can be given once. Further calls of give do nothing.
type signal struct {
	given chan struct{}
	give  func()
}

func newSignal() signal {
	given := make(chan struct{})
	return signal{given, sync.OnceFunc(func() { close(given) })}
}

func (s signal) isGiven() bool {
	select {
	case <-s.given:
		return true
	default:
		return false
	}
}

// await waits until all signals are given. It returns false if ctx ended first.
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

// retryPause is the time between two attempts of a background task.
const retryPause = 500 * time.Millisecond

// retry runs f until it succeeds or ctx ends.
func (c *coordinator) retry(ctx context.Context, what string, f func() error) error {
	for {
		err := f()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return nil
		}
		c.log.Warn("a background task failed; retrying", "what", what, "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
	}
}
