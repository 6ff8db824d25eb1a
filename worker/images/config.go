package images

import (
	"cmp"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// Config says how a worker manages the images on its host.
type Config struct {
	PullStall    time.Duration  // a pull without progress fails after this; default 2 min
	PrePull      []string       // images that are pulled and kept, whether or not a sandbox needs them
	HighWater    int            // disk use in percent, bytes or inodes, that starts the removal; default 85; 100: never
	LowWater     int            // percent used at which the removal of unused images stops; default 75
	MaxBytes     protocol.Bytes // limit for the images that the worker pulled; 0: no limit
	CheckCached  bool           // ask the registry before each use of an image that came from one, as pull: always does
	Registries   []string       // that images may come from: host[:port], and "public"; default docker.io and public
	DockerConfig string         // directory with credentials for registries; default DOCKER_CONFIG, or ~/.docker
	Sweep        time.Duration  // interval between checks of the room that images take; default 1 min
}

// Check validates the settings and fills in the defaults. Error: invalid_argument.
func (c *Config) Check() error {
	c.PullStall = cmp.Or(c.PullStall, docker.DefaultPullStall)
	c.HighWater = cmp.Or(c.HighWater, 85)
	c.LowWater = cmp.Or(c.LowWater, min(c.HighWater, 75))
	c.Sweep = cmp.Or(c.Sweep, time.Minute)
	switch {
	case c.PullStall < 0 || c.Sweep < 0:
		return protocol.Invalid("images.pull_stall", "must be more than 0")
	case c.HighWater < 1 || c.HighWater > 100:
		return protocol.Invalid("images.high_water", "must be 1 to 100 percent, got %d", c.HighWater)
	case c.LowWater < 1 || c.LowWater > c.HighWater:
		return protocol.Invalid("images.low_water", "must be 1 percent to images.high_water, %d, got %d",
			c.HighWater, c.LowWater)
	case c.MaxBytes < 0:
		return protocol.Invalid("images.max_bytes", "must not be negative")
	}
	if len(c.Registries) == 0 {
		c.Registries = []string{imageref.DockerHub, imageref.PublicRegistries}
	}
	var err error
	if c.Registries, err = imageref.CheckRegistries("images.registries", c.Registries); err != nil {
		return err
	}
	for i, ref := range c.PrePull {
		full, err := imageref.Full("images.pre_pull", ref)
		if err != nil {
			return err
		}
		if imageref.TrustOf(c.Registries, full) == imageref.Refused {
			return protocol.Invalid("images.pre_pull", "%.200s comes from a registry that images.registries does not allow",
				full)
		}
		c.PrePull[i] = full
	}
	return nil
}
