package images

import (
	"cmp"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// Config configures how a worker manages the images on its host.
type Config struct {
	PullStall    time.Duration  // a pull fails after this time without progress; default 2 min
	PrePull      []string       // images that are pulled and kept even if no sandbox needs them
	HighWater    int            // unused images are removed above this disk use in percent; default 85; 100: never
	LowWater     int            // the removal of unused images stops at this disk use in percent; default 75
	MaxBytes     protocol.Bytes // maximum size of all images that the worker brought to the host; 0: no limit
	CheckCached  bool           // ask the registry before each use of a pulled image, like the pull policy "always"
	Registries   []string       // allowed registries: host[:port], or "public"; default docker.io and public
	DockerConfig string         // directory with credentials for registries; default DOCKER_CONFIG, or ~/.docker
	Sweep        time.Duration  // interval between checks of the disk use; default 1 min
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
		return protocol.Invalid("images.low_water", "must be between 1 and images.high_water, which is %d, got %d",
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
