package docker

import (
	"context"
	"crypto/rand"

	"github.com/docker/docker/api/types/volume"

	"github.com/boxfleet/boxfleet/protocol"
)

func (e *Engine) hostVolume() string { return "boxfleet-host-" + e.deployment }

// HostID returns the id by which this deployment knows the engine. The id is random and kept as the label of a volume,
// which HostID creates if the engine has none. Machine ids and engine ids are not used, because they are copied when
// machines are cloned. If several callers create the volume at once, they all get the same id.
//
// Creating the volume is fenced like every change. A caller that needs the id before it can take the lock behind its
// fence uses an [Unfenced] engine.
func (e *Engine) HostID(ctx context.Context) (string, error) {
	id, err := e.readHostID(ctx)
	if !IsNotFound(err) {
		return id, err
	}
	return e.markHost(ctx, rand.Text())
}

// KeepHostID returns the id like [Engine.HostID]. An engine without an id gets the one that the host had before: the
// engine was emptied, but is still the host whose lock the caller holds.
func (e *Engine) KeepHostID(ctx context.Context, had string) (string, error) {
	id, err := e.readHostID(ctx)
	if !IsNotFound(err) {
		return id, err
	}
	return e.markHost(ctx, had)
}

func (e *Engine) markHost(ctx context.Context, id string) (string, error) {
	err := e.do(ctx, call{verb: "create", kind: kindVolume, name: e.hostVolume(), limit: e.changeLimit()},
		func(ctx context.Context) error {
			_, err := e.client.VolumeCreate(ctx, volume.CreateOptions{
				Name:   e.hostVolume(),
				Driver: "local",
				Labels: e.labelled(map[string]string{LabelHost: id}),
			})
			return err
		})
	if err != nil {
		return "", err
	}
	// Creating a volume that exists succeeds and changes nothing, so read the label that the volume has now.
	return e.readHostID(ctx)
}

func (e *Engine) readHostID(ctx context.Context) (string, error) {
	var id string
	c := call{verb: "inspect", kind: kindVolume, name: e.hostVolume(), limit: e.readLimit()}
	err := e.do(ctx, c, func(ctx context.Context) error {
		got, err := e.client.VolumeInspect(ctx, e.hostVolume())
		if err != nil {
			return err
		}
		id = got.Labels[LabelHost]
		if id == "" || got.Labels[LabelDeployment] != e.deployment {
			return protocol.Errorf(protocol.FailedPrecondition, "",
				"volume %s does not belong to Boxfleet: it has no label %s of deployment %s",
				e.hostVolume(), LabelHost, e.deployment)
		}
		return nil
	})
	return id, err
}

// RemoveHostID removes the id; the next [Engine.HostID] returns another one. Absent is no error.
func (e *Engine) RemoveHostID(ctx context.Context) error {
	err := e.do(ctx, call{verb: "remove", kind: kindVolume, name: e.hostVolume(), limit: e.changeLimit()},
		func(ctx context.Context) error {
			return e.client.VolumeRemove(ctx, e.hostVolume(), false)
		})
	return absentIsFine(err)
}

// absentIsFine turns the error of removing an absent object into success.
func absentIsFine(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
