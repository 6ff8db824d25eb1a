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

	// A sandbox may publish Burst bytes as fast as the log takes them, and Rate bytes a second after that.
	Burst, Rate protocol.Bytes

	// The end of an exec is not held up longer by a log that stores no output for Patience, nor by output that is
	// not stored within After the exec's timeout and grace period.
	Patience, After time.Duration

	// Probe is called with "output" after each chunk of an exec that was sent.
	Probe func(point string)
}

// Host publishes the output of all sandboxes on a host.
type Host struct {
	cfg   Config
	conn  *jetstream.Conn
	turns *turns
	freed lastFree
	kept  atomic.Int64 // execs that have ended and whose files are kept a little longer
}

// New returns a host that has nothing to publish yet.
func New(cfg Config) *Host {
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	return &Host{cfg: cfg, conn: cfg.Conn, turns: newTurns(cfg.Burst, cfg.Rate)}
}

// ExecStartsOrEnds makes the output of other sandboxes yield for a moment: the start and the end of an exec need the
// same cores, and the same store.
func (h *Host) ExecStartsOrEnds(k protocol.SandboxKey) { h.turns.yieldTo(k) }
