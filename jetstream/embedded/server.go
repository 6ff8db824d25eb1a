// Package embedded runs NATS servers with JetStream inside the process. A deployment on a single machine uses one such
// server by default, and tests run clusters of them.
package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/protocol"
)

// Config configures the server.
type Config struct {
	Dir   string // directory of JetStream's store; must not be empty
	Name  string // name of the server; must be unique in a cluster
	Host  string // address to listen on; default 127.0.0.1
	Port  int    // port to listen on; 0 chooses a free one, -1 opens no port at all
	Token string // token that all clients must present, including in-process clients; empty if none is needed

	// Operators puts the server in operator mode. All clients, also in-process clients, must then present credentials of
	// the operator's accounts instead of Token, which must be empty. nil: no operator.
	//
	// A store that was written in another mode, or for another operator, is adopted: its streams become those of the
	// account Operators.Streams or, without an operator, of the server's global account. A member of a cluster does not
	// adopt streams.
	Operators *Operators

	// TLS is the configuration of TLS that clients must use, except in-process clients; nil: no TLS. The routes of a
	// cluster never use TLS.
	TLS *tls.Config `json:"-"`

	ClusterName string   // name of the server's cluster; empty for a single server
	ClusterPort int      // port to listen on for the other members
	Routes      []string // URLs of the other members: nats://host:port

	// SyncLazily gives up durability after a power loss: writes are flushed to disk every two minutes instead of before
	// they are acknowledged. Only tests that measure the difference set it.
	SyncLazily bool
}

// Server is a running server.
type Server struct {
	*server.Server
	config  Config
	options *server.Options // the options with which the server started
}

// Start runs a server and waits up to 10 s until it accepts connections.
func Start(cfg Config) (*Server, error) {
	if cfg.Port != 0 {
		return start(cfg)
	}
	// Another process may take the chosen port before the server listens on it.
	return retryInUse(func() (*Server, error) {
		ports, err := FreePorts(1)
		if err != nil {
			return nil, err
		}
		chosen := cfg
		chosen.Port = ports[0]
		return start(chosen)
	})
}

// retryInUse calls f until f succeeds or fails with an error that does not wrap errPortInUse, but at most triesForPorts
// times. Each time, f chooses other ports.
func retryInUse[T any](f func() (T, error)) (result T, err error) {
	for range triesForPorts {
		if result, err = f(); !errors.Is(err, errPortInUse) {
			break
		}
	}
	return result, err
}

func start(cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, protocol.Invalid("dir", "must not be empty")
	}
	opts := &server.Options{
		ServerName: cfg.Name, Host: cfg.Host, Port: cfg.Port, Authorization: cfg.Token,
		JetStream: true, StoreDir: cfg.Dir, SyncAlways: !cfg.SyncLazily,
		JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 30,
		NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
		TLSConfig: cfg.TLS,
	}
	if err := cfg.Operators.apply(opts); err != nil {
		return nil, err
	}
	if cfg.Port < 0 {
		opts.DontListen, opts.Port = true, 0
	}
	if opts.Host == "" {
		opts.Host = "127.0.0.1"
	}
	if cfg.ClusterName != "" {
		opts.Cluster = server.ClusterOpts{Name: cfg.ClusterName, Host: opts.Host, Port: cfg.ClusterPort}
		for _, r := range cfg.Routes {
			u, err := url.Parse(r)
			if err != nil {
				return nil, protocol.Invalid("routes", "%v", err)
			}
			opts.Routes = append(opts.Routes, u)
		}
	}
	for _, port := range []int{cfg.Port, cfg.ClusterPort} {
		if port <= 0 {
			continue
		}
		if err := awaitPortFree(opts.Host, port); err != nil {
			return nil, err
		}
	}
	if cfg.ClusterName == "" {
		if err := adoptStreams(cfg.Dir, cfg.Operators.streams()); err != nil {
			return nil, err
		}
	}
	given := opts.Clone() // the server changes its options
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "make the embedded NATS server: %v", err)
	}
	if err := startAndWait(s, cfg.Dir); err != nil {
		return nil, err
	}
	return &Server{s, cfg, given}, nil
}

// ReloadTLS replaces the configuration of TLS. The new configuration applies to new connections, and at the next
// [Server.Restart].
func (s *Server) ReloadTLS(t *tls.Config) error {
	next := s.options.Clone()
	next.TLSConfig = t
	if err := s.ReloadOptions(next); err != nil {
		return protocol.Errorf(protocol.Internal, "", "reload the embedded NATS server: %v", err)
	}
	s.config.TLS = t
	return nil
}

// Stop stops the server and waits until its store is closed.
func (s *Server) Stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// Restart starts a stopped server again with the same configuration and the same port.
func (s *Server) Restart() (*Server, error) {
	return Start(s.config)
}

// WaitForLeader waits until the cluster has a meta leader and every member knows it.
func WaitForLeader(servers []*Server, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		current := 0
		for _, s := range servers {
			if s.JetStreamIsCurrent() {
				current++
			}
		}
		if current == len(servers) {
			return nil
		}
		if time.Now().After(deadline) {
			return protocol.Errorf(protocol.DeadlineExceeded, "", "no leader of the NATS cluster within %s", within)
		}
		time.Sleep(20 * time.Millisecond) // the server does not announce when it knows the leader
	}
}

// StartCluster runs n servers on loopback as one cluster and waits up to 30 s until it has a meta leader. Each server's
// directory is below dir.
func StartCluster(dir string, n int) ([]*Server, error) { return StartClusterOf(dir, n, nil) }

// StartClusterOf is like [StartCluster]. If o is not nil, the servers run in operator mode.
func StartClusterOf(dir string, n int, o *Operators) ([]*Server, error) {
	return retryInUse(func() ([]*Server, error) { return startCluster(dir, n, o) })
}

func startCluster(dir string, n int, o *Operators) ([]*Server, error) {
	ports, err := FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	configs := make([]Config, n)
	for i := range configs {
		configs[i] = Config{
			Dir: dir + "/n" + strconv.Itoa(i+1), Name: "n" + strconv.Itoa(i+1), ClusterName: "boxfleet",
			Port: ports[i], ClusterPort: ports[n+i], Operators: o,
		}
		for j := range configs {
			if j != i {
				configs[i].Routes = append(configs[i].Routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[n+j]))
			}
		}
	}
	servers := make([]*Server, n)
	for i, cfg := range configs {
		if servers[i], err = start(cfg); err != nil {
			for _, s := range servers[:i] {
				s.Stop()
			}
			return nil, err
		}
	}
	return servers, WaitForLeader(servers, 30*time.Second)
}
