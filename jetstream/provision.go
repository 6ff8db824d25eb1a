package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Provisioner makes and updates Boxfleet's streams and buckets.
type Provisioner struct{ *streams }

// Provision makes missing streams and buckets and updates the others. It reads and compares all of them before it
// changes anything, and refuses any setting that would weaken one of them. Several coordinators may call Provision at
// once, and any number of times. While a cluster is starting, Provision waits until ctx ends.
//
// Errors: failed_precondition with reason would_weaken or needs_migration, and the field; failed_precondition with
// reason server_settings if the server has no room for the limits; unavailable.
func (pr *Provisioner) Provision(ctx context.Context, a Assets) error {
	return pr.provision(ctx, a, false)
}

// Change is like Provision, but may lower ages and sizes: an operator's command calls it. Only [Growth.Grow] changes
// the number of replicas.
func (pr *Provisioner) Change(ctx context.Context, a Assets) error { return pr.provision(ctx, a, true) }

func (pr *Provisioner) provision(ctx context.Context, a Assets, deliberate bool) error {
	// Requests for the streams report every other error.
	if err := pr.askAccount(ctx); errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return settings("%s", whyNoJetStream(err))
	}
	var p plan
	err := pr.provisioned(ctx, "the streams", func(context.Context) (err error) {
		for again := true; again && err == nil; { // another coordinator may be provisioning too
			var existing map[string]found
			if existing, err = pr.found(ctx, &a); err == nil {
				p, err = planned(a, existing, deliberate)
			}
			if err == nil {
				again, err = pr.carryOut(ctx, &p)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, problem := range p.problems {
		pr.log.Error("storage is less safe than intended", "problem", problem)
	}
	return pr.readAssets(ctx)
}

// found reads the state of all existing streams.
func (pr *Provisioner) found(ctx context.Context, a *Assets) (map[string]found, error) {
	existing := map[string]found{}
	names := []string{}
	for _, want := range a.assets() {
		names = append(names, want.config.Name)
	}
	for _, name := range append(names, streamMoving) { // streamMoving replaces the output's stream during a move
		info, err := pr.streamInfo(ctx, name)
		switch {
		case err == nil:
			existing[name] = found{info.Config, int64(info.State.Bytes)}
		case !isReason(err, protocol.ReasonNotProvisioned):
			return nil, err
		}
	}
	return existing, nil
}

func isReason(err error, reason string) bool {
	return err != nil && protocol.AsError(err).Reason == reason
}

// carryOut executes a plan. If again is true, another process has made a stream in the meantime, and the caller must
// make a new plan.
func (pr *Provisioner) carryOut(ctx context.Context, p *plan) (again bool, err error) {
	if again, err := pr.createAll(ctx, p); again || err != nil {
		return again, err
	}
	for _, cfg := range p.update {
		err := pr.updateStream(ctx, cfg)
		if err != nil && p.late[cfg.Name] && noRoom(err) {
			pr.log.Warn("could not change a stream's size limit: the server has too little storage left to reserve it",
				"stream", cfg.Name, "limit", protocol.Bytes(cfg.MaxBytes))
			continue
		}
		if err != nil {
			return false, noRoomFor(cfg, err)
		}
	}
	return false, nil
}

// leastFraction limits createAll: it shrinks no stream below 1/leastFraction of the stream's default size.
const leastFraction = 16

// createAll makes the missing streams. If the server has too little room, it halves the size of all new streams with a
// default size until they fit. It also shrinks new streams that it has already made.
func (pr *Provisioner) createAll(ctx context.Context, p *plan) (again bool, err error) {
	fraction := int64(1)
	fitted := func(cfg jetstream.StreamConfig) jetstream.StreamConfig {
		if p.standard[cfg.Name] {
			cfg.MaxBytes /= fraction
		}
		return cfg
	}
	for i, cfg := range p.create {
		if cfg.Name == protocol.StreamEvents {
			cfg.Metadata = map[string]string{metadataDeployment: strings.ToLower(ulid.Make().String())}
			p.create[i] = cfg
		}
		err := pr.createStream(ctx, fitted(cfg))
		for noRoom(err) && fraction < leastFraction {
			fraction *= 2
			for _, made := range p.create[:i] {
				if err := pr.updateStream(ctx, fitted(made)); err != nil {
					return false, translate(err, "provision "+made.Name)
				}
			}
			err = pr.createStream(ctx, fitted(cfg))
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return true, nil
		}
		if err != nil {
			return false, noRoomFor(fitted(cfg), err)
		}
	}
	if fraction > 1 {
		pr.log.Warn("made new streams smaller than by default: the server has too little storage left",
			"part_of_default_size", fmt.Sprintf("1/%d", fraction))
	}
	return false, nil
}

func (pr *Provisioner) createStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	return pr.apply(ctx, "make "+cfg.Name, func(ctx context.Context) error {
		_, err := pr.js.CreateStream(ctx, cfg)
		return err
	})
}

// apply sends an idempotent change until it is answered, because a starting cluster drops some requests. It returns the
// server's error, not translated.
func (pr *Provisioner) apply(ctx context.Context, doing string, change func(context.Context) error) error {
	ctx, cancel := pr.bound(ctx)
	defer cancel()
	refused, err := askRepeatedly(ctx, &pr.connection, doing, func(ctx context.Context) (refused, err error) {
		if err = change(ctx); isOneOf(translate(err, doing), protocol.Unavailable, protocol.DeadlineExceeded) {
			return nil, err
		}
		return err, nil
	})
	return cmp.Or(err, refused)
}

func (pr *Provisioner) updateStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	if cfg.MaxAge > 0 {
		cfg.Duplicates = min(cfg.Duplicates, cfg.MaxAge)
	}
	return pr.apply(ctx, "change "+cfg.Name, func(ctx context.Context) error {
		_, err := pr.js.UpdateStream(ctx, cfg)
		return err
	})
}

// noRoom reports whether the server has too little storage left to reserve a stream's size limit.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == codeInsufficientStorage ||
		api.ErrorCode == codeInsufficientStore || api.ErrorCode == codeAccountResources)
}

func noRoomFor(cfg jetstream.StreamConfig, err error) error {
	if !noRoom(err) {
		return translate(err, "provision "+cfg.Name)
	}
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings,
		"the NATS server's file store has no room for %s, which may take %s: raise max_file_store in its "+
			"jetstream { store_dir, max_file_store }, or lower the sizes under coordinator in Boxfleet's configuration",
		cfg.Name, protocol.Bytes(cfg.MaxBytes))
}

// provisioned calls the function make, which creates or changes a stream. It retries while the cluster has no leader
// for the stream.
func (pr *Provisioner) provisioned(ctx context.Context, name string, make func(ctx context.Context) error) error {
	for {
		err := translate(make(ctx), "provision "+name)
		if !isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) || !backoff.Sleep(ctx, 100*time.Millisecond) {
			return err
		}
		pr.log.Warn("waiting for NATS to make or change streams", "what", name, "error", err)
	}
}

// readAssets reads the deployment's properties again, because the deployment may have grown.
func (pr *Provisioner) readAssets(ctx context.Context) error {
	pr.mu.Lock()
	pr.meta = nil
	pr.mu.Unlock()
	_, err := pr.assets(ctx)
	return err
}

func splitURLs(s string) []string {
	var urls []string
	for _, u := range strings.Split(s, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	return urls
}
