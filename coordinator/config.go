package coordinator

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/spec"
)

// Config configures a coordinator.
type Config struct {
	Conn       *jetstream.Conn // required; the caller closes it
	Name       string          // the coordinator's name, an id; required
	Build      string          // version that ping shows
	SyncAlways bool            // the NATS server is embedded and writes to disk before it acknowledges

	// RestartStore restarts the NATS server that is embedded in this process, after its store has refused writes. It is
	// nil if no server is embedded.
	RestartStore func(context.Context) error

	// CleanupTTL is the time after which stopped and failed sandboxes are deleted, and histories of deleted
	// sandboxes are purged; default 360 h.
	CleanupTTL      time.Duration
	HostForgetAfter time.Duration    // a host is forgotten when it has been lost for this time; default 0: never
	Assets          jetstream.Assets // how the streams are created
	Defaults        spec.Defaults    // per tenant: values for the fields that a create omits
	OnReady         func()           // called once, when requests are accepted; may be nil
	Logger          *slog.Logger     // default slog.Default

	// MaxActiveExecs is how many execs a sandbox may have active at once; further execs are refused. 1 to
	// [protocol.MaxActiveExecs]; default 1000.
	MaxActiveExecs int

	// UploadMaxBytes is the size limit of one uploaded tree, as a tar stream; default [DefaultUploadMaxBytes].
	UploadMaxBytes protocol.Bytes

	// Histories says when older parts of histories leave the event log.
	Histories Histories

	// Output limits the output that is kept of each sandbox, and of each tenant.
	Output OutputBudget

	// ReadQuotas reads the quotas of tenants. A coordinator calls it at its start and then about once a second. If
	// ReadQuotas is nil, this coordinator has no quotas. The quotas of the leading coordinator apply in the whole
	// deployment.
	ReadQuotas func() (spec.Quotas, error)

	// SecretsKeys are the fleet's keys for secrets. Clients seal values to the first key; each key opens. Without keys,
	// this coordinator refuses everything that needs a secret's value.
	SecretsKeys seal.Keys

	// OnState is called when the coordinator's state changes. The argument well is true while the coordinator works.
	// The argument text says in a few words what the coordinator does or waits for. OnState must not block, and may be
	// nil.
	OnState func(well bool, text string)

	// OnTurn is called at each turn of a main loop of the coordinator. The argument next says within which time the
	// loop turns again, even while NATS does not answer; a loop that takes longer is stuck. If next is 0, the loop has
	// ended. OnTurn must not block, and may be nil.
	OnTurn func(loop string, next time.Duration)

	// Timing is set by tests only. Zero values mean the defaults.
	Timing Timing
	// Probe is called at named points of the work, so that tests can crash the coordinator there. It may be nil.
	Probe func(point string)

	quotas map[string]protocol.Quota // as ReadQuotas returned them at the start
	made   func(*coordinator)        // called with the new coordinator, for tests; may be nil
}

// DefaultUploadMaxBytes is the size limit of one uploaded tree: as much as all uploads together may take by default.
const DefaultUploadMaxBytes = protocol.Bytes(4 << 30)

// setDefaults validates the settings, and sets the missing ones to their defaults.
func (cfg *Config) setDefaults() error {
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
		return protocol.Invalid("coordinator.max_active_execs",
			"must be 1 to %d, got %d", protocol.MaxActiveExecs, cfg.MaxActiveExecs)
	}
	if cfg.UploadMaxBytes == 0 {
		cfg.UploadMaxBytes = DefaultUploadMaxBytes
	}
	if cfg.UploadMaxBytes < 0 {
		return protocol.Invalid("coordinator.upload_max_bytes", "must be positive, got %s", cfg.UploadMaxBytes)
	}
	if err := cfg.Histories.setDefaults(); err != nil {
		return err
	}
	if err := cfg.Output.check(); err != nil {
		return err
	}
	if cfg.ReadQuotas != nil {
		read, err := cfg.ReadQuotas()
		if err == nil {
			err = read.Validate()
		}
		if err != nil {
			return err
		}
		cfg.quotas = read.Resolved()
	}
	if cfg.HostForgetAfter < 0 {
		return protocol.Invalid("coordinator.host_forget_after", "must not be negative, got %s", cfg.HostForgetAfter)
	}
	if cfg.CleanupTTL == 0 {
		cfg.CleanupTTL = 360 * time.Hour
	}
	cfg.Logger = seldom.Logger(cmp.Or(cfg.Logger, slog.Default()))
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	if cfg.OnState == nil {
		cfg.OnState = func(bool, string) {}
	}
	if cfg.OnTurn == nil {
		cfg.OnTurn = func(string, time.Duration) {}
	}
	cfg.Timing.setDefaults()
	return nil
}

// Timing holds the periods of the coordinator's loops.
type Timing struct {
	Scan     time.Duration // time between two scans for work that no event announces; default 1 s
	Suspect  time.Duration // a host that has been silent for this time gets no new work, and may be lost; default 5 s
	Retell   time.Duration // time until a worker is notified again about a pending sandbox; default 5 s
	Seize    time.Duration // time between two attempts to take a silent host's lock; default 3 s
	Snapshot time.Duration // time between two rounds of snapshots; default 30 s
	Abandon  time.Duration // an id that has been reserved for this time and still has no history is ended; default 60 s
	Image    time.Duration // longest wait for an image that may not be pulled and that no host has; default 30 s
	Unwanted time.Duration // how long the file of an unwanted image is kept; default 24 h
	Parts    time.Duration // age at which the chunks of interrupted uploads are removed; default 10 min
	Overdue  time.Duration // time from the deadline of an exec or create until the leader ends it; default 60 s
	Keep     time.Duration // shortest time that a forgotten host is remembered; default 1 hour
	Compact  time.Duration // time between two checks for long histories; default 1 min
	Output   time.Duration // time between two checks of the stored output; default 1 s
	Fresh    time.Duration // longest time that a read waits for the log before it is answered from memory; default 1 s
}

func (t *Timing) setDefaults() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&t.Scan, time.Second}, {&t.Suspect, 5 * time.Second}, {&t.Retell, 5 * time.Second},
		{&t.Seize, 3 * time.Second}, {&t.Snapshot, 30 * time.Second}, {&t.Abandon, time.Minute},
		{&t.Image, 30 * time.Second}, {&t.Unwanted, jetstream.UnwantedAge}, {&t.Parts, jetstream.UploadPartsAge},
		{&t.Overdue, time.Minute},
		{&t.Keep, time.Hour}, {&t.Compact, time.Minute}, {&t.Output, time.Second}, {&t.Fresh, time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
}
