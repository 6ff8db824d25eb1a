package jetstream

import (
	"bufio"
	"context"
	"encoding/json"
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

// A failover of NATS takes 7 to 8 s, during which calls are retried. Without a majority of the servers, retries are
// pointless, and the caller gets an error instead.
const (
	quorumAfter  = time.Second            // time without an answer after which the majority is checked
	quorumPause  = 250 * time.Millisecond // pause between two checks
	quorumFailed = 2 * time.Second        // how long checks must fail; a single check may fail because a machine is slow
	dialWithin   = 700 * time.Millisecond // time for the servers to greet or answer

	serversRead = 5 * time.Second  // least time between two reads of the list of servers
	serversKept = 10 * time.Minute // how long a server that left the cluster's list still counts as a member
)

// quorum checks whether a majority of the NATS servers can be reached. It remembers the members of the cluster and the
// last check, which concurrent calls share.
type quorum struct {
	*core

	mu       sync.Mutex
	servers  map[string]time.Time // when the client last listed each server, as configured or discovered
	greeted  map[string]bool      // whether a server that only the cluster listed ever greeted this process
	read     time.Time            // when the list was last read
	checking chan struct{}        // closed when the current check has ended
	since    time.Time            // start of the first of the successive failed checks
	why      string               // what the last check found missing; empty: nothing
	at       time.Time            // when the last check ended
}

// errNoQuorum returns the error for a missing majority. Callers do not retry it immediately.
func errNoQuorum(why string) error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonNoQuorum, "NATS: %s", why)
}

// whileQuorum bounds a call. If no answer arrives for a while, and no majority of the NATS servers can be reached, the
// returned context ends. Its cause is then an error with reason no_quorum.
func (q *quorum) whileQuorum(ctx context.Context) (context.Context, context.CancelFunc) {
	q.rememberServers()
	ctx, end := context.WithCancelCause(ctx)
	check := time.AfterFunc(quorumAfter, func() {
		for ctx.Err() == nil {
			if why, since := q.checkQuorum(ctx); why != "" && time.Since(since) >= quorumFailed {
				end(errNoQuorum(why))
				return
			}
			backoff.Sleep(ctx, quorumPause)
		}
	})
	return ctx, func() { check.Stop(); end(nil) }
}

// orNoQuorum returns err, or errNoQuorum if checks have failed for long enough. It starts a check in the background,
// because a call may fail immediately when no server takes its request.
func (q *quorum) orNoQuorum(err error) error {
	if !isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) {
		return err
	}
	go q.checkQuorum(context.Background()) // ends soon, because a check has a time limit
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.why == "" || time.Since(q.at) > quorumFailed || time.Since(q.since) < quorumFailed {
		return err
	}
	return errNoQuorum(q.why)
}

// checkQuorum returns why there is no majority of the servers, and since when there is none. Concurrent callers share
// one check.
func (q *quorum) checkQuorum(ctx context.Context) (why string, since time.Time) {
	q.mu.Lock()
	if time.Since(q.at) < quorumPause {
		defer q.mu.Unlock()
		return q.why, q.since
	}
	if checking := q.checking; checking != nil {
		q.mu.Unlock()
		select {
		case <-checking:
		case <-ctx.Done():
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.why, q.since
	}
	q.checking = make(chan struct{})
	stale := time.Since(q.at) > quorumFailed // the last check says nothing about the present
	q.mu.Unlock()
	began := time.Now()
	why = q.missing()
	q.mu.Lock()
	defer q.mu.Unlock()
	if why != "" && (q.why == "" || stale) {
		q.since = began
	}
	q.why, q.at = why, time.Now()
	close(q.checking)
	q.checking = nil
	return q.why, q.since
}

// missing returns one sentence about why there can be no majority, or an empty text if there may be one.
func (q *quorum) missing() string {
	ctx, cancel := context.WithTimeout(context.Background(), dialWithin)
	defer cancel()
	known := q.knownServers(ctx)
	reached := q.reachable(ctx, known)
	if len(known) > 1 && reached < (len(known)+1)/2 {
		return fmt.Sprintf("%d of %d servers can be reached (%s), which is no majority",
			reached, len(known), strings.Join(known, ", "))
	}
	if !q.nc.IsConnected() {
		return "" // the only server is unreachable and may be back soon
	}
	if q.withoutStreams {
		return ""
	}
	asked, end := context.WithTimeout(context.Background(), dialWithin)
	defer end()
	_, err := q.js.AccountInfo(asked)
	var api *jetstream.APIError
	if isWithoutJetStream(err) || errors.As(err, &api) && api.Code == statusUnavailable {
		return whyNoJetStream(err)
	}
	return ""
}

// whyNoJetStream returns one sentence about why JetStream does not answer.
func whyNoJetStream(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "JetStream is not enabled for this account: give it jetstream: enabled"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return "JetStream is disabled on every server that can be reached. A server disables it when its disk is full or " +
			"fails: make room on the disk, and restart the server. A server that never had JetStream needs " +
			"jetstream { store_dir, max_file_store }"
	case errors.As(err, &api) && api.Code == statusUnavailable:
		return "JetStream has no leader: a majority of its servers is unreachable, or has JetStream disabled"
	}
	return "JetStream does not answer: it is disabled on every server, or has no leader, or NATS is unreachable"
}

// rememberServers records the servers in the cluster's list. A server that dies leaves the list, but still counts as a
// member of the cluster.
func (q *quorum) rememberServers() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.read) < serversRead {
		return
	}
	q.read = time.Now()
	if q.servers == nil {
		q.servers, q.greeted = map[string]time.Time{}, map[string]bool{}
	}
	for _, s := range q.nc.Servers() {
		q.servers[s] = q.read
	}
	for _, s := range q.nc.DiscoveredServers() {
		if !q.greeted[s] {
			q.greeted[s] = false
			go q.tryServer(s)
		}
	}
	maps.DeleteFunc(q.servers, func(_ string, seen time.Time) bool { return q.read.Sub(seen) > serversKept })
	maps.DeleteFunc(q.greeted, func(s string, _ bool) bool { return q.servers[s].IsZero() })
}

// tryServer records whether this process can reach a server at all. A cluster may list addresses of its own network,
// which are unreachable from other networks.
func (q *quorum) tryServer(server string) {
	ctx, cancel := context.WithTimeout(context.Background(), dialWithin)
	defer cancel()
	if greeted, _ := greets(ctx, server); !greeted {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.greeted[server] = true
}

// knownServers returns the addresses of the cluster's servers, each once. It resolves names, because a server that was
// configured by its name may also be listed by its address.
func (q *quorum) knownServers(ctx context.Context) []string {
	q.mu.Lock()
	var known []string
	for s := range q.servers {
		if reached, listed := q.greeted[s]; !listed || reached {
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

// reachable counts the servers that greet a client now. A paused server accepts connections but does not greet.
func (q *quorum) reachable(ctx context.Context, servers []string) int {
	greeted := make(chan bool, len(servers))
	for _, s := range servers {
		go func() {
			ok, _ := greets(ctx, s)
			greeted <- ok
		}()
	}
	n := 0
	for range servers {
		if <-greeted {
			n++
		}
	}
	return n
}

// greets reports whether a server greets a client, and whether it says in its greeting that it has no JetStream.
func greets(ctx context.Context, server string) (greeted, withoutJetStream bool) {
	u, err := url.Parse(server)
	if err != nil || u.Port() == "" {
		return true, false // without a port to try, assume that the server can be reached
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false, false
	}
	defer conn.Close()
	if u.Scheme != "nats" { // with other schemes the client speaks first
		return true, false
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline) // fails only if the connection is closed
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	said, isInfo := strings.CutPrefix(line, "INFO ")
	if err != nil || !isInfo {
		return false, false
	}
	var info struct{ JetStream bool }
	return true, json.Unmarshal([]byte(said), &info) == nil && !info.JetStream
}

// jetStreamDisabled reports whether all servers that can be reached say in their greetings that they have no JetStream.
// The API of JetStream does not tell: a server that disabled JetStream does not answer. Clients without a right to the
// API can read greetings too.
func (c *connection) jetStreamDisabled() bool {
	if c.cfg.InProcess != nil {
		here, _ := c.nc.ConnectedServerJetStream()
		return c.nc.IsConnected() && !here
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialWithin)
	defer cancel()
	disabled := false
	for _, server := range c.nc.Servers() {
		switch greeted, without := greets(ctx, server); {
		case greeted && !without:
			return false
		case greeted:
			disabled = true
		}
	}
	return disabled
}
