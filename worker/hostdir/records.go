package hostdir

import (
	"os"
	"path/filepath"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Defaults are settings that each start of a container needs. A setting that the spec lacks comes from the image. The
// settings are stored, because the image's name may refer to another image later.
type Defaults struct {
	User    string   `json:"user,omitempty"`
	Cwd     string   `json:"cwd,omitempty"`
	Command []string `json:"command,omitempty"` // the service's command; not set for a primary container

	Volumes     []string              `json:"volumes,omitempty"`     // volumes of the image; see hostfiles.Volumes
	StopSignal  int                   `json:"stop_signal,omitempty"` // stops the container's own command; 0: TERM
	Healthcheck *protocol.Healthcheck `json:"healthcheck,omitempty"` // health check in the image of a service
}

// SaveDefaults stores the defaults of a sandbox or service.
func (d Dir) SaveDefaults(v Defaults) error {
	if err := d.WriteFile("defaults", protocol.Encode(&v)); err != nil {
		return hosterr.Wrap(err, "save a sandbox's defaults")
	}
	return nil
}

// Defaults reads the defaults that SaveDefaults stored.
func (d Dir) Defaults() (v Defaults, err error) {
	data, err := os.ReadFile(filepath.Join(d.Path, "defaults"))
	if err != nil {
		return v, hosterr.Wrap(err, "read a sandbox's defaults")
	}
	return v, protocol.Decode(data, &v)
}

// EarlierOutput returns how much of the two streams of a container's own command was published on other hosts before
// this host made the container. The first call stores its argument, which is how much is published at that time. Every
// call returns the stored value.
func (d Dir) EarlierOutput(now [2]int64) (earlier [2]int64, err error) {
	data, err := os.ReadFile(filepath.Join(d.Path, "output"))
	if err == nil {
		return earlier, protocol.Decode(data, &earlier)
	}
	if err := d.WriteFile("output", protocol.Encode(&now)); err != nil {
		return earlier, hosterr.Wrap(err, "record how much output of a command was published on other hosts")
	}
	return now, nil
}
