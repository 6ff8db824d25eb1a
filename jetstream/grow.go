package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	growWithin = 30 * time.Second // how long the server may take to change one stream's number of replicas

	// streamMoving holds the output while the output's stream is made again. The stream must be made again because the
	// server cannot change a stream's persist mode, and does not replicate streams in async mode.
	streamMoving = protocol.StreamLogs + "_MOVING"
	// parkedSubject replaces the subjects of the output's stream during the move, so that the stream stores no output.
	// Workers keep the output on disk and send it until it is stored.
	parkedSubject = "boxfleet.v1.parked.log"
)

// Growth gives the streams and buckets of a running deployment more replicas.
type Growth struct {
	*streams

	provisioner *Provisioner
}

// Grow gives every stream and bucket this many replicas, 3 or 5, and waits until all are in sync or ctx ends. It
// reports its progress to step, which may be nil. The deployment keeps running, but output is stored with a delay.
// Sequences and times of stored messages do not change. If Grow fails or ctx ends, a later call continues. Grow also
// repairs streams that lost replicas. It never removes replicas.
//
// Errors: invalid_argument; failed_precondition with reason would_weaken if a stream already has more replicas, or with
// reason server_settings if the cluster has too few servers; unavailable.
func (g *Growth) Grow(ctx context.Context, replicas int, step func(string)) error {
	if replicas != 3 && replicas != 5 {
		return protocol.Invalid(
			"replicas",
			"must be 3 or 5, got %d: an even number of replicas survives no more failures than the next lower number",
			replicas,
		)
	}
	if step == nil {
		step = func(string) {}
	}
	existing, err := g.provisioner.found(ctx, &Assets{})
	if err != nil {
		return err
	}
	if existing[protocol.StreamEvents].config.Name == "" {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotProvisioned,
			"there is no deployment yet: start the first coordinator with --replicas %d", replicas)
	}
	for name, f := range existing {
		if f.config.Replicas > replicas {
			return &protocol.Error{
				Code:    protocol.FailedPrecondition,
				Reason:  protocol.ReasonWouldWeaken,
				Field:   "replicas",
				Message: fmt.Sprintf("%s has %d replicas and is not reduced to %d", name, f.config.Replicas, replicas),
			}
		}
	}
	for _, want := range (&Assets{}).assets() {
		name := want.config.Name
		f, exists := existing[name]
		if name == protocol.StreamLogs || !exists || f.config.Replicas == replicas {
			continue
		}
		step(fmt.Sprintf("%s: from %d to %d replicas", name, f.config.Replicas, replicas))
		f.config.Replicas = replicas
		if err := g.grown(ctx, f.config); err != nil {
			return err
		}
	}
	if err := g.growLogs(ctx, want(protocol.StreamLogs), replicas, step); err != nil {
		return err
	}
	for _, a := range (&Assets{}).assets() {
		step(a.config.Name + ": waiting for its replicas")
		if err := g.inSync(ctx, a.config.Name, replicas); err != nil {
			return err
		}
	}
	return g.provisioner.readAssets(ctx)
}

// want returns a stream's default configuration.
func want(name string) jetstream.StreamConfig {
	for _, a := range (&Assets{}).assets() {
		if a.config.Name == name {
			return a.config
		}
	}
	return jetstream.StreamConfig{}
}

func (g *Growth) grown(ctx context.Context, cfg jetstream.StreamConfig) error {
	bounded, cancel := context.WithTimeout(ctx, growWithin)
	defer cancel()
	err := g.provisioner.provisioned(bounded, cfg.Name, func(ctx context.Context) error {
		return g.provisioner.updateStream(ctx, cfg)
	})
	if isOneOf(err, protocol.Internal, protocol.Unavailable) {
		return protocol.Errorf(
			protocol.FailedPrecondition,
			protocol.ReasonServerSettings,
			"%d replicas need a NATS cluster of %d servers that all have JetStream: %v",
			cfg.Replicas,
			cfg.Replicas,
			err,
		)
	}
	return err
}

// growLogs replaces the output's stream with a stream that has replicas and no async mode. It moves the output to a
// second stream and back. The second stream begins as a mirror of the first. Each step depends only on the current
// state, so an interrupted move can be continued at any point.
func (g *Growth) growLogs(ctx context.Context, fresh jetstream.StreamConfig, replicas int, step func(string)) error {
	for {
		existing, err := g.provisioner.found(ctx, &Assets{})
		if err != nil {
			return err
		}
		m := &logsMove{growth: g, replicas: replicas}
		m.logs, m.logsExist = existing[protocol.StreamLogs]
		m.moving, m.movingExists = existing[streamMoving]
		m.setFinal(fresh)
		next := m.next()
		if next.do == nil {
			return nil
		}
		step(protocol.StreamLogs + ": " + next.what)
		if ctx.Err() != nil {
			return translate(ctx.Err(), "grow "+protocol.StreamLogs)
		}
		if err := g.provisioner.provisioned(ctx, protocol.StreamLogs, next.do); err != nil {
			return err
		}
	}
}

// move is one step of moving the output. A step can be repeated.
type move struct {
	what string
	do   func(context.Context) error
}

// logsMove is the state of moving the output to a stream with replicas.
type logsMove struct {
	growth                  *Growth
	replicas                int
	logs, moving            found
	logsExist, movingExists bool
	final                   jetstream.StreamConfig // configuration of the output's stream after the move
}

func (m *logsMove) setFinal(fresh jetstream.StreamConfig) {
	m.final = fresh
	if m.movingExists {
		m.final = restoredLimits(fresh, m.moving.config)
	}
	m.final.Replicas, m.final.PersistMode = m.replicas, jetstream.DefaultPersistMode
}

// parked reports whether the output's stream stores no new output.
func (m *logsMove) parked() bool {
	subjects := m.logs.config.Subjects
	return m.logsExist && len(subjects) == 1 && subjects[0] == parkedSubject
}

// next returns the next step, or a zero move after the last step.
func (m *logsMove) next() move {
	switch promoted := m.movingExists && m.moving.config.Mirror == nil; {
	case !m.movingExists:
		return m.begin()
	case !promoted && m.logsExist:
		return m.moveAway()
	case promoted:
		return m.moveBack()
	}
	return m.removeCopy()
}

// begin returns the next step for a deployment without a copy of the output.
func (m *logsMove) begin() move {
	g, logs := m.growth, m.logs.config
	switch {
	case m.logsExist && logs.Replicas == m.replicas:
		return move{}
	case m.logsExist && logs.PersistMode != jetstream.AsyncPersistMode:
		logs.Replicas = m.replicas
		return move{"add replicas", func(ctx context.Context) error { return g.provisioner.updateStream(ctx, logs) }}
	case m.logsExist:
		return move{"copy the output", func(ctx context.Context) error {
			return g.mirror(ctx, movingConfig(logs, m.replicas), protocol.StreamLogs)
		}}
	}
	return move{"make the stream", func(ctx context.Context) error { return g.create(ctx, m.final) }}
}

// moveAway returns the next step while the copy is still a mirror.
func (m *logsMove) moveAway() move {
	g := m.growth
	if !m.parked() {
		cfg := m.logs.config
		cfg.Subjects = []string{parkedSubject}
		return move{"stop storing new output", func(ctx context.Context) error {
			// Copy most of the output while the stream still stores new output.
			if err := g.copied(ctx, streamMoving, protocol.StreamLogs, nearlyAll); err != nil {
				return err
			}
			return g.provisioner.updateStream(ctx, cfg)
		}}
	}
	cfg := m.moving.config
	cfg.Mirror = nil
	return move{"make the copy a stream of its own", func(ctx context.Context) error {
		if err := g.mark(ctx); err != nil {
			return err
		}
		if err := g.copied(ctx, streamMoving, protocol.StreamLogs, all); err != nil {
			return err
		}
		return g.provisioner.updateStream(ctx, cfg)
	}}
}

// moveBack returns the next step after the copy became a stream of its own.
func (m *logsMove) moveBack() move {
	g, logs := m.growth, m.logs.config
	switch {
	case !m.logsExist:
		cfg := m.final
		cfg.Subjects = nil
		return move{
			"make the stream again, with replicas",
			func(ctx context.Context) error { return g.mirror(ctx, cfg, streamMoving) },
		}
	case m.parked() && logs.Mirror == nil && logs.PersistMode == jetstream.AsyncPersistMode:
		return move{"remove the old stream", func(ctx context.Context) error {
			if err := g.copied(ctx, streamMoving, protocol.StreamLogs, all); err != nil {
				return err
			}
			return g.deleteStream(ctx, protocol.StreamLogs)
		}}
	case logs.Mirror != nil:
		return move{"store output again", func(ctx context.Context) error {
			if err := g.copied(ctx, protocol.StreamLogs, streamMoving, all); err != nil {
				return err
			}
			return g.provisioner.updateStream(ctx, m.final)
		}}
	}
	return m.removeCopy()
}

func (m *logsMove) removeCopy() move {
	return move{"remove the copy", func(ctx context.Context) error {
		if err := m.growth.purgeSubject(ctx, protocol.StreamLogs, parkedSubject); err != nil {
			return err
		}
		return m.growth.deleteStream(ctx, streamMoving)
	}}
}

// During the move, the metadata of the copy holds the limits of the output's stream. The copy itself has no limits, so
// that it loses nothing that the stream still has.
const (
	metadataAge   = "boxfleet.max_age"
	metadataBytes = "boxfleet.max_bytes"
)

func movingConfig(logs jetstream.StreamConfig, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:         streamMoving,
		Replicas:     replicas,
		Storage:      jetstream.FileStorage,
		AllowDirect:  true,
		MaxConsumers: logs.MaxConsumers,
		Metadata:     map[string]string{metadataAge: logs.MaxAge.String(), metadataBytes: fmt.Sprint(logs.MaxBytes)},
	}
}

func restoredLimits(fresh, moving jetstream.StreamConfig) jetstream.StreamConfig {
	if d, err := time.ParseDuration(moving.Metadata[metadataAge]); err == nil {
		fresh.MaxAge = d
	}
	var n int64
	if _, err := fmt.Sscan(moving.Metadata[metadataBytes], &n); err == nil {
		fresh.MaxBytes = n
	}
	return fresh
}

func (g *Growth) mirror(ctx context.Context, cfg jetstream.StreamConfig, of string) error {
	cfg.Mirror, cfg.Subjects, cfg.Duplicates = &jetstream.StreamSource{Name: of}, nil, 0
	return g.create(ctx, cfg)
}

func (g *Growth) create(ctx context.Context, cfg jetstream.StreamConfig) error {
	err := g.provisioner.createStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return err
}

func (g *Growth) deleteStream(ctx context.Context, name string) error {
	ctx, cancel := g.bound(ctx)
	defer cancel()
	err := g.js.DeleteStream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

func (g *Growth) purgeSubject(ctx context.Context, name, subject string) error {
	ctx, cancel := g.bound(ctx)
	defer cancel()
	stream, err := g.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
}

// mark writes a last message to the parked stream. Messages at the end of the stream may have been removed. Without the
// mark, the copy would assign their sequences to other messages.
func (g *Growth) mark(ctx context.Context) error {
	last, err := g.lastOnSubject(ctx, protocol.StreamLogs, parkedSubject)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return err
	}
	info, err := g.streamInfo(ctx, protocol.StreamLogs)
	if err != nil || last != nil && last.sequence == info.State.LastSeq {
		return err
	}
	_, err = g.publish(ctx, nats.NewMsg(parkedSubject), anySequence)
	return err
}

// The functions nearlyAll and all report whether a copy has enough messages of its origin.
func nearlyAll(from, to jetstream.StreamState) bool { return to.Msgs+1000 >= from.Msgs }
func all(from, to jetstream.StreamState) bool       { return to.LastSeq >= from.LastSeq }

// copied waits until the function enough reports that a copy has enough messages of its origin. The parameter copied is
// the name of the copy.
func (g *Growth) copied(ctx context.Context, copied, origin string,
	enough func(from, to jetstream.StreamState) bool) error {
	for {
		from, err := g.streamInfo(ctx, origin)
		if err != nil {
			return err
		}
		to, err := g.streamInfo(ctx, copied)
		if err != nil {
			return err
		}
		if enough(from.State, to.State) {
			return nil
		}
		if !backoff.Sleep(ctx, 50*time.Millisecond) {
			return protocol.Errorf(protocol.Cancelled, "", "%s has only %d of the %d messages of %s: run the command again",
				copied, to.State.Msgs, from.State.Msgs, origin)
		}
	}
}

// inSync waits until a stream has this many replicas and all of them are current.
func (g *Growth) inSync(ctx context.Context, name string, replicas int) error {
	for {
		info, err := g.streamInfo(ctx, name)
		if err == nil && info.Cluster != nil && info.Cluster.Leader != "" {
			current := 1
			for _, r := range info.Cluster.Replicas {
				if r.Current && !r.Offline {
					current++
				}
			}
			if current >= replicas {
				return nil
			}
		}
		if err != nil && !isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) {
			return err
		}
		if !backoff.Sleep(ctx, 50*time.Millisecond) {
			return protocol.Errorf(
				protocol.DeadlineExceeded,
				"",
				"the replicas of %s are not in sync yet: see boxfleet ping",
				name,
			)
		}
	}
}

// stepDown asks the leader of a stream to hand over to another server.
func (h *StoreHealth) stepDown(ctx context.Context, name string) error {
	ctx, cancel := h.bound(ctx)
	defer cancel()
	reply, err := h.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+name, nil)
	if err != nil {
		return translate(err, "move the leadership of "+name)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return protocol.Errorf(protocol.Internal, "", "move the leadership of %s: %v", name, err)
	}
	if answer.Error != nil {
		return translate(answer.Error, "move the leadership of "+name)
	}
	return nil
}
