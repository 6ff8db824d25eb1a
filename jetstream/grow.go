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
	growWithin = 30 * time.Second // bounds the server's answer to one stream's replicas

	// streamMoving has the output while its stream is made again: the server changes no persist mode,
	// and takes no async stream with replicas.
	streamMoving = protocol.StreamLogs + "_MOVING"
	// parkedSubject is what the output's stream listens to while it is moved: to no worker's output.
	// The workers keep that on disk, and send it again until somebody listens.
	parkedSubject = "boxfleet.v1.parked.log"
)

// Grow makes every stream and bucket have so many replicas, 3 or 5, and waits until all are in sync,
// or ctx ends. step is told what is done; it may be nil. The deployment goes on meanwhile; output is
// sent a little later. What is stored keeps its sequences and times. Grow may be run again after any
// end, and then goes on where it was. It mends streams that lost replicas, too. It never takes
// replicas away.
//
// Errors: invalid_argument; failed_precondition with reason would_weaken where there are more, or with
// reason server_settings where the cluster has not so many servers; unavailable.
func (c *Conn) Grow(ctx context.Context, replicas int, step func(string)) error {
	if replicas != 3 && replicas != 5 {
		return protocol.Invalid("replicas", "must be 3 or 5, got %d: a majority of an even number is no safer than that of one less", replicas)
	}
	if step == nil {
		step = func(string) {}
	}
	there, err := c.found(ctx, &Assets{})
	if err != nil {
		return err
	}
	if there[protocol.StreamEvents].config.Name == "" {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotProvisioned, "there is no deployment yet: start the first coordinator with --replicas %d", replicas)
	}
	for name, f := range there {
		if f.config.Replicas > replicas {
			return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonWouldWeaken, Field: "replicas",
				Message: fmt.Sprintf("%s has %d replicas and is not cut to %d", name, f.config.Replicas, replicas)}
		}
	}
	for _, want := range (&Assets{}).assets() {
		name := want.config.Name
		f, exists := there[name]
		if name == protocol.StreamLogs || !exists || f.config.Replicas == replicas {
			continue
		}
		step(fmt.Sprintf("%s: from %d to %d replicas", name, f.config.Replicas, replicas))
		f.config.Replicas = replicas
		if err := c.grown(ctx, f.config); err != nil {
			return err
		}
	}
	if err := c.growLogs(ctx, want(protocol.StreamLogs), replicas, step); err != nil {
		return err
	}
	for _, a := range (&Assets{}).assets() {
		step(a.config.Name + ": waiting for its replicas")
		if err := c.inSync(ctx, a.config.Name, replicas); err != nil {
			return err
		}
	}
	return c.readAssets(ctx)
}

// want is what a stream is made with by default.
func want(name string) jetstream.StreamConfig {
	for _, a := range (&Assets{}).assets() {
		if a.config.Name == name {
			return a.config
		}
	}
	return jetstream.StreamConfig{}
}

func (c *Conn) grown(ctx context.Context, cfg jetstream.StreamConfig) error {
	bounded, cancel := context.WithTimeout(ctx, growWithin)
	defer cancel()
	err := c.provisioned(bounded, cfg.Name, func(ctx context.Context) error { return c.updateStream(ctx, cfg) })
	if isOneOf(err, protocol.Internal, protocol.Unavailable) {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
			"%d replicas need a NATS cluster of %d servers that all have JetStream: %v", cfg.Replicas, cfg.Replicas, err)
	}
	return err
}

// growLogs moves the output to a stream with replicas and without the async mode: over to another
// stream, as its mirror, and back. Each step is told from what is there, so that it can be run again.
func (c *Conn) growLogs(ctx context.Context, fresh jetstream.StreamConfig, replicas int, step func(string)) error {
	for {
		there, err := c.found(ctx, &Assets{})
		if err != nil {
			return err
		}
		logs, logsThere := there[protocol.StreamLogs]
		moving, movingThere := there[streamMoving]
		next := c.nextMove(logs, logsThere, moving, movingThere, fresh, replicas)
		if next.do == nil {
			return nil
		}
		step(protocol.StreamLogs + ": " + next.what)
		if ctx.Err() != nil {
			return translate(ctx.Err(), "grow "+protocol.StreamLogs)
		}
		if err := c.provisioned(ctx, protocol.StreamLogs, next.do); err != nil {
			return err
		}
	}
}

// move is one step of moving the output. Each may be done again.
type move struct {
	what string
	do   func(context.Context) error
}

// nextMove is the step that what is there asks for.
func (c *Conn) nextMove(logs found, logsThere bool, moving found, movingThere bool, fresh jetstream.StreamConfig, replicas int) move {
	final := fresh
	if movingThere {
		final = restoredLimits(fresh, moving.config)
	}
	final.Replicas, final.PersistMode = replicas, jetstream.DefaultPersistMode
	parked := logsThere && len(logs.config.Subjects) == 1 && logs.config.Subjects[0] == parkedSubject
	promoted := movingThere && moving.config.Mirror == nil
	switch {
	case !movingThere && logsThere && logs.config.Replicas == replicas:
		return move{}
	case !movingThere && logsThere && logs.config.PersistMode != jetstream.AsyncPersistMode:
		cfg := logs.config
		cfg.Replicas = replicas
		return move{"more replicas", func(ctx context.Context) error { return c.updateStream(ctx, cfg) }}
	case !movingThere && logsThere:
		return move{"copy it", func(ctx context.Context) error {
			return c.mirror(ctx, movingConfig(logs.config, replicas), protocol.StreamLogs)
		}}
	case !movingThere:
		return move{"make it", func(ctx context.Context) error { return c.create(ctx, final) }}
	case !promoted && logsThere && !parked:
		cfg := logs.config
		cfg.Subjects = []string{parkedSubject}
		return move{"take no new output", func(ctx context.Context) error {
			if err := c.copied(ctx, streamMoving, protocol.StreamLogs, nearly); err != nil { // most of it while output still comes
				return err
			}
			return c.updateStream(ctx, cfg)
		}}
	case !promoted && logsThere:
		cfg := moving.config
		cfg.Mirror = nil
		return move{"hand over to the copy", func(ctx context.Context) error {
			if err := c.mark(ctx); err != nil {
				return err
			}
			if err := c.copied(ctx, streamMoving, protocol.StreamLogs, wholly); err != nil {
				return err
			}
			return c.updateStream(ctx, cfg)
		}}
	case promoted && logsThere && parked && logs.config.Mirror == nil && logs.config.PersistMode == jetstream.AsyncPersistMode:
		return move{"remove the old one", func(ctx context.Context) error {
			if err := c.copied(ctx, streamMoving, protocol.StreamLogs, wholly); err != nil {
				return err
			}
			return c.deleteStream(ctx, protocol.StreamLogs)
		}}
	case promoted && !logsThere:
		cfg := final
		cfg.Subjects = nil
		return move{"make it with replicas", func(ctx context.Context) error { return c.mirror(ctx, cfg, streamMoving) }}
	case promoted && logs.config.Mirror != nil:
		return move{"take output again", func(ctx context.Context) error {
			if err := c.copied(ctx, protocol.StreamLogs, streamMoving, wholly); err != nil {
				return err
			}
			return c.updateStream(ctx, final)
		}}
	}
	return move{"remove the copy", func(ctx context.Context) error {
		if err := c.purgeSubject(ctx, protocol.StreamLogs, parkedSubject); err != nil {
			return err
		}
		return c.deleteStream(ctx, streamMoving)
	}}
}

// The limits of the output's stream wait in the metadata of its copy, which itself has none: it must
// not lose what the stream still has.
const (
	metadataAge   = "boxfleet.max_age"
	metadataBytes = "boxfleet.max_bytes"
)

func movingConfig(logs jetstream.StreamConfig, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: streamMoving, Replicas: replicas, Storage: jetstream.FileStorage, AllowDirect: true, MaxConsumers: logs.MaxConsumers,
		Metadata: map[string]string{metadataAge: logs.MaxAge.String(), metadataBytes: fmt.Sprint(logs.MaxBytes)}}
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

func (c *Conn) mirror(ctx context.Context, cfg jetstream.StreamConfig, of string) error {
	cfg.Mirror, cfg.Subjects, cfg.Duplicates = &jetstream.StreamSource{Name: of}, nil, 0
	return c.create(ctx, cfg)
}

func (c *Conn) create(ctx context.Context, cfg jetstream.StreamConfig) error {
	err := c.createStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return err
}

func (c *Conn) deleteStream(ctx context.Context, name string) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	err := c.js.DeleteStream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

func (c *Conn) purgeSubject(ctx context.Context, name, subject string) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
}

// mark writes a last message to the parked stream: what was removed at its end leaves no trace in a
// copy, which would then go on with a sequence that was used before.
func (c *Conn) mark(ctx context.Context) error {
	last, err := c.lastOnSubject(ctx, protocol.StreamLogs, parkedSubject)
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return err
	}
	info, err := c.streamInfo(ctx, protocol.StreamLogs)
	if err != nil || last != nil && last.sequence == info.State.LastSeq {
		return err
	}
	_, err = c.publish(ctx, nats.NewMsg(parkedSubject), anySequence)
	return err
}

// nearly and wholly say how far a copy has to be.
func nearly(from, to jetstream.StreamState) bool { return to.Msgs+1000 >= from.Msgs }
func wholly(from, to jetstream.StreamState) bool { return to.LastSeq >= from.LastSeq }

// copied waits until a copy has what its origin has.
func (c *Conn) copied(ctx context.Context, copied, origin string, enough func(from, to jetstream.StreamState) bool) error {
	for {
		from, err := c.streamInfo(ctx, origin)
		if err != nil {
			return err
		}
		to, err := c.streamInfo(ctx, copied)
		if err != nil {
			return err
		}
		if enough(from.State, to.State) {
			return nil
		}
		if !backoff.Sleep(ctx, 50*time.Millisecond) {
			return protocol.Errorf(protocol.Cancelled, "", "%s has %d of %d messages of %s: run it again", copied, to.State.Msgs, from.State.Msgs, origin)
		}
	}
}

// inSync waits until a stream has so many replicas and each has what the leader has.
func (c *Conn) inSync(ctx context.Context, name string, replicas int) error {
	for {
		info, err := c.streamInfo(ctx, name)
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
			return protocol.Errorf(protocol.DeadlineExceeded, "", "the replicas of %s are not in sync yet: see boxfleet ping", name)
		}
	}
}

// stepDown asks the leader of a stream to let another one lead.
func (c *Conn) stepDown(ctx context.Context, name string) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	reply, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+name, nil)
	if err != nil {
		return translate(err, "let another server lead "+name)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return protocol.Errorf(protocol.Internal, "", "let another server lead %s: %v", name, err)
	}
	if answer.Error != nil {
		return translate(answer.Error, "let another server lead "+name)
	}
	return nil
}
