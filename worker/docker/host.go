package docker

import (
	"context"
	"crypto/rand"

	"github.com/docker/docker/api/types/volume"

	"github.com/boxfleet/boxfleet/protocol"
)

// hostMark are the methods for the volume that carries the host's id.
type hostMark struct{ *connection }

func (hm *hostMark) hostVolume() string { return "boxfleet-host-" + hm.deployment }

// HostID returns the id by which this deployment knows the engine. The id is random and kept as the label of a volume,
// which HostID creates if the engine has none. Machine ids and engine ids are not used, because they are copied when
// machines are cloned. If several callers create the volume at once, they all get the same id.
//
// Creating the volume is fenced like every change. A caller that needs the id before it can take the lock behind its
// fence uses an [Unfenced] engine.
func (hm *hostMark) HostID(ctx context.Context) (string, error) {
	id, err := hm.readHostID(ctx)
	if !IsNotFound(err) {
		return id, err
	}
	return hm.markHost(ctx, rand.Text())
}

// KeepHostID returns the id like [Engine.HostID]. An engine without an id gets the one that the host had before: the
// engine was emptied, but is still the host whose lock the caller holds.
func (hm *hostMark) KeepHostID(ctx context.Context, had string) (string, error) {
	id, err := hm.readHostID(ctx)
	if !IsNotFound(err) {
		return id, err
	}
	return hm.markHost(ctx, had)
}

func (hm *hostMark) markHost(ctx context.Context, id string) (string, error) {
	err := hm.do(ctx, call{verb: "create", kind: kindVolume, name: hm.hostVolume(), limit: hm.changeLimit()},
		func(ctx context.Context) error {
			_, err := hm.client.VolumeCreate(ctx, volume.CreateOptions{
				Name:   hm.hostVolume(),
				Driver: "local",
				Labels: hm.labelled(map[string]string{LabelHost: id}),
			})
			return err
		})
	if err != nil {
		return "", err
	}
	// Creating a volume that exists succeeds and changes nothing, so read the label that the volume has now.
	return hm.readHostID(ctx)
}

func (hm *hostMark) readHostID(ctx context.Context) (string, error) {
	var id string
	c := call{verb: "inspect", kind: kindVolume, name: hm.hostVolume(), limit: hm.readLimit()}
	err := hm.do(ctx, c, func(ctx context.Context) error {
		got, err := hm.client.VolumeInspect(ctx, hm.hostVolume())
		if err != nil {
			return err
		}
		id = got.Labels[LabelHost]
		if id == "" || got.Labels[LabelDeployment] != hm.deployment {
			return protocol.Errorf(protocol.FailedPrecondition, "",
				"volume %s does not belong to Boxfleet: it has no label %s of deployment %s",
				hm.hostVolume(), LabelHost, hm.deployment)
		}
		return nil
	})
	return id, err
}

// RemoveHostID removes the id; the next [Engine.HostID] returns another one. Absent is no error.
func (hm *hostMark) RemoveHostID(ctx context.Context) error {
	err := hm.do(ctx, call{verb: "remove", kind: kindVolume, name: hm.hostVolume(), limit: hm.changeLimit()},
		func(ctx context.Context) error {
			return hm.client.VolumeRemove(ctx, hm.hostVolume(), false)
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
