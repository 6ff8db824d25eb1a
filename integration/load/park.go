package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// park is the set of simulated workers of one process.
type park struct {
	role    *role
	log     *slog.Logger
	hosts   []*host
	reading chan struct{} // one value for each history that this process reads now; its capacity limits these reads
	round   atomic.Int64  // number of the current notification round; see mark
	tenures atomic.Int64  // how often a host took its lock
}

// readingAtOnce is how many histories a process may read at once.
const readingAtOnce = 64

func newPark(r *role, log *slog.Logger) *park {
	p := &park{role: r, log: log, reading: make(chan struct{}, readingAtOnce)}
	for i := range r.Hosts {
		p.hosts = append(p.hosts, newHost(p, r.First+i))
	}
	return p
}

// run starts all workers and returns when ctx ends or one fails.
func (p *park) run(ctx context.Context) error {
	connecting := make(chan struct{}, 32)
	group, ctx := errgroup.WithContext(ctx)
	for _, h := range p.hosts {
		group.Go(func() error {
			connecting <- struct{}{}
			conn, err := p.role.connect(ctx, h.identity(), p.log)
			<-connecting
			if err != nil {
				return err
			}
			defer conn.Close()
			h.conn = conn
			return h.run(ctx)
		})
	}
	return group.Wait()
}

// workerName and hostID name the i-th host of the fleet.
func workerName(i int) string { return fmt.Sprintf("w%05d", i) }
func hostID(i int) string     { return fmt.Sprintf("host-%05d", i) }

// livingID returns the id of the i-th seeded sandbox, which is on host i modulo the number of hosts.
func livingID(i int) string { return fmt.Sprintf("living-%07d", i) }

// heard holds numbers about the notifications that workers have received.
type heard struct {
	Living  int   `json:"living"`  // number of sandboxes on the hosts
	Told    int   `json:"told"`    // number of these sandboxes for which a notification came since the last mark
	Tenures int64 `json:"tenures"` // how often hosts took their locks since the process began
}

func (h *heard) add(o heard) {
	h.Living += o.Living
	h.Told += o.Told
	h.Tenures += o.Tenures
}

// mark begins a new notification round: from now on, told counts the sandboxes for which a notification comes.
func (p *park) mark() heard {
	p.round.Add(1)
	return p.told()
}

// told returns the numbers since the last call of mark.
func (p *park) told() heard {
	sum, round := heard{Tenures: p.tenures.Load()}, p.round.Load()
	for _, h := range p.hosts {
		h.mu.Lock()
		for _, b := range h.boxes {
			if b.here() {
				sum.Living++
				if b.round.Load() == round {
					sum.Told++
				}
			}
		}
		h.mu.Unlock()
	}
	return sum
}

func portOf(address string) int {
	u, err := url.Parse(address)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(u.Port()) // 0: any free port
	return port
}
