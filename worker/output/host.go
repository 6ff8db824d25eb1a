package output

import (
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Config says how a host publishes output. All fields but Probe are required.
type Config struct {
	Conn *jetstream.Conn

	HostID string // id of the Docker host, under which the output is stored

	// A sandbox may publish Burst bytes as fast as the log takes them, and Rate bytes a second after that.
	Burst, Rate protocol.Bytes

	// The end of an exec waits until the log has stored the exec's output. It stops waiting when the log has stored no
	// output for Patience, or when After has passed since the exec's timeout and grace period.
	Patience, After time.Duration

	// Probe is called with "output" each time a chunk of an exec was sent.
	Probe func(point string)
}

// Host publishes the output of all sandboxes on a host.
type Host struct {
	cfg   Config
	conn  *jetstream.Conn
	turns *turns
	freed lastFree
	kept  atomic.Int64 // number of ended execs whose files are kept for a moment
}

// New returns a host without output to publish.
func New(cfg Config) *Host {
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	return &Host{cfg: cfg, conn: cfg.Conn, turns: newTurns(cfg.Burst, cfg.Rate)}
}

// ExecStartsOrEnds slows down the output of other sandboxes for a moment, because the start and the end of an exec need
// the same cores and the same store.
func (h *Host) ExecStartsOrEnds(k protocol.SandboxKey) { h.turns.yieldTo(k) }
