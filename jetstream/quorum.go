package jetstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// A fail-over takes NATS 7 to 8 s, through which calls are tried again. Where no majority of the
// servers is there, that would be in vain, and the caller is told instead.
const (
	quorumAfter  = time.Second            // without an answer, look whether there is a majority
	quorumPause  = 250 * time.Millisecond // between looks
	quorumFailed = 2 * time.Second        // every look has to fail for this time: one failure may be a slow machine's
	dialWithin   = 700 * time.Millisecond

	serversRead = 5 * time.Second  // how often the list of servers is read, at most
	serversKept = 10 * time.Minute // a server that the cluster no longer names still counts as its own for this time
)

// quorum remembers the cluster, and the last look at it, which calls share.
type quorum struct {
	mu      sync.Mutex
	servers map[string]time.Time // when each server was last known to the cluster, or configured
	heard   map[string]bool      // servers that only the cluster named: whether one ever greeted this process
	read    time.Time            // when the cluster was last asked for them
	looking chan struct{}        // closed when the look that is under way has ended
	since   time.Time            // of the first of the looks that failed, one after another
	why     string               // what the last look found missing; empty: a majority is there
	at      time.Time
}

// errNoQuorum is final: trying again at once is in vain.
func errNoQuorum(why string) error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonNoQuorum, "NATS: %s", why)
}

// whileQuorum bounds a call: when there is no answer for long and no majority of the NATS servers, ctx
// ends with an error of reason no_quorum as its cause.
func (c *Conn) whileQuorum(ctx context.Context) (context.Context, context.CancelFunc) {
	c.rememberServers()
	ctx, end := context.WithCancelCause(ctx)
	look := time.AfterFunc(quorumAfter, func() {
		for ctx.Err() == nil {
			if why, since := c.lookForQuorum(ctx); why != "" && time.Since(since) >= quorumFailed {
				end(errNoQuorum(why))
				return
			}
			backoff.Sleep(ctx, quorumPause)
		}
	})
	return ctx, func() { look.Stop(); end(nil) }
}

// orNoQuorum is err, or, where looks have failed for long enough, that there is no majority. Calls that
// fail at once, since nobody takes what they send, have others look in the meantime.
func (c *Conn) orNoQuorum(err error) error {
	if !isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) {
		return err
	}
	go c.lookForQuorum(context.Background()) // ends soon: a look is bounded
	q := &c.quorum
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.why == "" || time.Since(q.at) > quorumFailed || time.Since(q.since) < quorumFailed {
		return err
	}
	return errNoQuorum(q.why)
}

// lookForQuorum says what is missing, and since when; many callers share one look.
func (c *Conn) lookForQuorum(ctx context.Context) (why string, since time.Time) {
	q := &c.quorum
	q.mu.Lock()
	if time.Since(q.at) < quorumPause {
		defer q.mu.Unlock()
		return q.why, q.since
	}
	if looking := q.looking; looking != nil {
		q.mu.Unlock()
		select {
		case <-looking:
		case <-ctx.Done():
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.why, q.since
	}
	q.looking = make(chan struct{})
	stale := time.Since(q.at) > quorumFailed // what was missing then says nothing of the time between
	q.mu.Unlock()
	began := time.Now()
	why = c.missing()
	q.mu.Lock()
	defer q.mu.Unlock()
	if why != "" && (q.why == "" || stale) {
		q.since = began
	}
	q.why, q.at = why, time.Now()
	close(q.looking)
	q.looking = nil
	return q.why, q.since
}

// missing says in one sentence why no majority can be there; empty: one may be.
func (c *Conn) missing() string {
	ctx, cancel := context.WithTimeout(context.Background(), dialWithin)
	defer cancel()
	known := c.knownServers(ctx)
	there := c.reachable(ctx, known)
	if len(known) > 1 && there < (len(known)+1)/2 {
		return fmt.Sprintf("%d of %d servers can be reached (%s), which is no majority", there, len(known), strings.Join(known, ", "))
	}
	if !c.nc.IsConnected() {
		return "" // the only server is away, and may be back soon
	}
	asked, end := context.WithTimeout(context.Background(), dialWithin)
	defer end()
	_, err := c.js.AccountInfo(asked)
	var api *jetstream.APIError
	if isWithoutJetStream(err) || errors.As(err, &api) && api.Code == 503 {
		return whyNoJetStream(err)
	}
	return ""
}

// whyNoJetStream says in one sentence why JetStream does not answer.
func whyNoJetStream(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "JetStream is not enabled for this account: give it jetstream: enabled"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return "JetStream is disabled on every server that can be reached: give each jetstream { store_dir, max_file_store }, and look for errors of its disk in its log"
	case errors.As(err, &api) && api.Code == 503:
		return "JetStream has no leader: a majority of its servers is away, or has JetStream disabled"
	}
	return "JetStream does not answer: it is disabled on every server, or has no leader, or NATS is away"
}

// rememberServers notes the servers that the cluster says it has: one that dies is no longer among
// them, and is missing all the same.
func (c *Conn) rememberServers() {
	q := &c.quorum
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.read) < serversRead {
		return
	}
	q.read = time.Now()
	if q.servers == nil {
		q.servers, q.heard = map[string]time.Time{}, map[string]bool{}
	}
	for _, s := range c.nc.Servers() {
		q.servers[s] = q.read
	}
	for _, s := range c.nc.DiscoveredServers() {
		if !q.heard[s] {
			q.heard[s] = false
			go c.tryServer(s)
		}
	}
	maps.DeleteFunc(q.servers, func(_ string, seen time.Time) bool { return q.read.Sub(seen) > serversKept })
	maps.DeleteFunc(q.heard, func(s string, _ bool) bool { return q.servers[s].IsZero() })
}

// tryServer notes whether a server can be reached at all: a cluster may name addresses that are its own
// network's only, and says nothing by their silence.
func (c *Conn) tryServer(server string) {
	ctx, cancel := context.WithTimeout(context.Background(), dialWithin)
	defer cancel()
	if !greets(ctx, server) {
		return
	}
	c.quorum.mu.Lock()
	defer c.quorum.mu.Unlock()
	c.quorum.heard[server] = true
}

// knownServers are the addresses of the servers of the cluster, each once: one that was given by name
// is also known by its address.
func (c *Conn) knownServers(ctx context.Context) []string {
	q := &c.quorum
	q.mu.Lock()
	var known []string
	for s := range q.servers {
		if reached, named := q.heard[s]; !named || reached {
			known = append(known, s)
		}
	}
	q.mu.Unlock()
	for i, s := range known {
		u, err := url.Parse(s)
		if err != nil || net.ParseIP(u.Hostname()) != nil {
			continue
		}
		if addresses, err := net.DefaultResolver.LookupHost(ctx, u.Hostname()); err == nil && len(addresses) > 0 {
			u.Host = net.JoinHostPort(addresses[0], u.Port())
			known[i] = u.String()
		}
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// reachable counts the servers that greet a client now. One that was paused takes connections, and
// says nothing.
func (c *Conn) reachable(ctx context.Context, servers []string) int {
	greeted := make(chan bool, len(servers))
	for _, s := range servers {
		go func() { greeted <- greets(ctx, s) }()
	}
	n := 0
	for range servers {
		if <-greeted {
			n++
		}
	}
	return n
}

func greets(ctx context.Context, server string) bool {
	u, err := url.Parse(server)
	if err != nil || u.Port() == "" {
		return true // nothing is known against it
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	defer conn.Close()
	if u.Scheme != "nats" { // the others wait for the client's first word
		return true
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline) // fails only where the connection is closed
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "INFO ")
}
