package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Package worker uses the same values.
const (
	beatPeriod     = time.Second
	registerPeriod = 15 * time.Second
	lockPause      = 250 * time.Millisecond
	retryFirst     = 100 * time.Millisecond
	retryMost      = 5 * time.Second
)

// image is the image of all sandboxes; every host has it.
const image = "registry.example/team/image:1.2"

// host is a simulated worker and its host.
type host struct {
	park      *park
	number    int
	name, id  string
	instance  string
	conn      *jetstream.Conn
	lease     atomic.Pointer[jetstream.Lease]
	started   time.Time
	listening atomic.Uint64
	fresh     chan struct{} // gets a value when the worker listens again after an interruption; its capacity is 1

	mu    sync.Mutex
	boxes map[key]*box
}

// key identifies a sandbox.
type key struct{ tenant, id string }

func newHost(p *park, i int) *host {
	return &host{park: p, number: i, name: workerName(i), id: hostID(i), instance: newID(), started: time.Now(),
		fresh: make(chan struct{}, 1), boxes: map[key]*box{}}
}

func (h *host) identity() rights.Identity { return workerIdentity(h.number) }

func workerIdentity(i int) rights.Identity {
	return rights.Identity{Role: rights.Worker, Name: workerName(i), Host: hostID(i)}
}

func newID() string { return strings.ToLower(ulid.Make().String()) }

// run takes the host's lock and works until ctx ends. It takes the lock again each time the lock is lost.
func (h *host) run(ctx context.Context) error {
	if err := h.conn.Open(ctx); err != nil {
		return err
	}
	if err := h.conn.RegisterWriter(ctx, protocol.OwnerWorker, h.name, h.id); err != nil {
		return err
	}
	for {
		lease, err := h.takeLock(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		h.park.tenures.Add(1)
		h.lease.Store(lease)
		if err = h.tenure(ctx, lease); ctx.Err() != nil {
			return nil
		}
		h.park.log.Warn("a worker lost its host's lock; taking the lock again", "worker", h.name, "error", err)
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (h *host) takeLock(ctx context.Context) (*jetstream.Lease, error) {
	holder := jetstream.Holder{Name: h.name, Instance: h.instance, Place: h.id, Detail: "simulated"}
	takeOver := uint64(0)
	for {
		lease, err := h.conn.AcquireHost(ctx, h.id, holder, takeOver)
		if err == nil {
			return lease, nil
		}
		takeOver = 0
		var held *jetstream.HeldError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &held) && held.Holder.Place == h.id: // an earlier tenure of this host holds the lock
			takeOver = held.Revision
			continue
		case held == nil:
			h.park.log.Warn("cannot take the host's lock yet", "worker", h.name, "error", err)
		}
		if !sleep(ctx, lockPause) {
			return nil, ctx.Err()
		}
	}
}

// tenure works until the lock is lost or ctx ends.
func (h *host) tenure(ctx context.Context, lease *jetstream.Lease) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return lease.Run(ctx) })
	group.Go(func() error { return h.work(ctx, group) })
	return group.Wait()
}

// work takes over the sandboxes of the host and then handles work until ctx ends.
func (h *host) work(ctx context.Context, group *errgroup.Group) error {
	h.adopt(ctx)
	stop, err := h.conn.Work(h.name, func(tenant, id string, b *protocol.Batch) { h.box(key{tenant, id}).told(ctx, b) })
	if err != nil {
		return err
	}
	defer stop()
	h.listens()
	defer h.conn.OnReconnect(h.listens)()
	if err := h.register(ctx); err != nil {
		return err
	}
	if err := h.conn.PublishImages(ctx, &protocol.HostImages{Worker: h.name, HostID: h.id, Instance: h.instance,
		Listed: true, Names: []string{image}, Time: time.Now().UTC()}); err != nil {
		h.park.log.Warn("could not report the host's images", "worker", h.name, "error", err)
	}
	group.Go(func() error { return h.beat(ctx) })
	group.Go(func() error { return h.keepRegistered(ctx) })
	<-ctx.Done()
	return ctx.Err()
}

// adopt inspects all sandboxes on the host: seeded sandboxes, and sandboxes that the host took later.
func (h *host) adopt(ctx context.Context) {
	for i := h.number; i < h.park.role.Living; i += h.park.role.Workers {
		h.box(key{protocol.DefaultTenant, livingID(i)})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.boxes {
		b.look(ctx)
	}
}

func (h *host) box(k key) *box {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[k]
	if b == nil {
		b = newBox(h, k)
		h.boxes[k] = b
	}
	return b
}

// forget drops a sandbox that is no longer on this host.
func (h *host) forget(k key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, k)
}

func (h *host) listens() {
	h.listening.Add(1)
	select {
	case h.fresh <- struct{}{}:
	default:
	}
}

func (h *host) register(ctx context.Context) error {
	entry := &protocol.Host{
		Worker: h.name, HostID: h.id, Instance: h.instance, Token: h.token(), Build: "load", Slots: h.park.role.Slots,
		CPU: 64, Cores: 64, Memory: 1 << 40, Disk: 1 << 42, DiskQuota: true, PIDs: 4 << 20, Engine: "simulated",
		Runtime:  "runc",
		Profiles: []string{protocol.ProfileHardened}, ServiceProfiles: []string{protocol.ProfileHardened}, Images: true,
		Firewall: protocol.FirewallNFTables, Healthy: true, StartedAt: h.started.UTC(),
	}
	for {
		entry.SeenAt = time.Now().UTC()
		err := h.conn.RegisterHost(ctx, entry)
		if err == nil || protocol.CodeOf(err) == protocol.AlreadyExists || ctx.Err() != nil {
			return err
		}
		h.park.log.Warn("could not register the worker yet", "worker", h.name, "error", err)
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func (h *host) keepRegistered(ctx context.Context) error {
	for sleep(ctx, registerPeriod) {
		if err := h.register(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (h *host) beat(ctx context.Context) error {
	ticker := time.NewTicker(beatPeriod)
	defer ticker.Stop()
	for {
		_ = h.conn.Beat(&protocol.Heartbeat{Worker: h.name, HostID: h.id, Instance: h.instance, Healthy: true,
			Listening: h.listening.Load()}) // ignore the error: a coordinator notices a lost heartbeat
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.fresh:
		case <-ticker.C:
		}
	}
}

func (h *host) token() uint64 { return h.lease.Load().Token() }

// fence checks that the host still holds its lock. It is called before every change on the host.
func (h *host) fence() error { return h.lease.Load().Check() }

// sleep waits for d. If ctx ends first, it returns false.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
