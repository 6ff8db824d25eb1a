package docker

import (
	"context"
	"crypto/rand"

	"github.com/docker/docker/api/types/volume"

	"github.com/boxfleet/boxfleet/protocol"
)

// hostMark has the methods for the volume that stores the host's id in a label.
type hostMark struct{ *connection }

func (hm *hostMark) hostVolume() string { return "boxfleet-host-" + hm.deployment }

// HostID returns the id by which this deployment knows the engine's host. The id is random, and stored as the label of
// a volume on the engine. HostID creates the volume if it does not exist. If several callers create the volume at once,
// they all get the same id. The ids of the machine and of the engine are not used, because a clone of the machine has
// the same ids.
//
// Creating the volume passes the fence like every change. A caller that needs the id in order to take the host's lock
// uses an [Unfenced] engine.
func (hm *hostMark) HostID(ctx context.Context) (string, error) {
	id, err := hm.readHostID(ctx)
	if !IsNotFound(err) {
		return id, err
	}
	return hm.markHost(ctx, rand.Text())
}

// KeepHostID returns the id like [Engine.HostID]. If the engine has no id, because its volumes were removed, KeepHostID
// stores the id that the host had before. The caller must hold the lock of that host.
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
				"volume %s was not created by Boxfleet: it lacks the label %s, or its label %s is not %s; "+
					"remove the volume", hm.hostVolume(), LabelHost, LabelDeployment, hm.deployment)
		}
		return nil
	})
	return id, err
}

// RemoveHostID removes the host's id from the engine. The next [Engine.HostID] returns a new id. An absent id is no
// error.
func (hm *hostMark) RemoveHostID(ctx context.Context) error {
	err := hm.do(ctx, call{verb: "remove", kind: kindVolume, name: hm.hostVolume(), limit: hm.changeLimit()},
		func(ctx context.Context) error {
			return hm.client.VolumeRemove(ctx, hm.hostVolume(), false)
		})
	return absentIsFine(err)
}

// absentIsFine returns nil for the error that an object does not exist, and any other error unchanged.
func absentIsFine(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
