package docker

import (
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/boxfleet/boxfleet/protocol"
)

// healthcheckOf translates an image's health check. It returns nil if the image has no health check. A CMD-SHELL test
// runs in the image's shell, if the image sets a shell.
func healthcheckOf(h *container.HealthConfig, shell []string) *protocol.Healthcheck {
	if h == nil || len(h.Test) < 2 || h.Test[0] != "CMD" && h.Test[0] != "CMD-SHELL" {
		return nil
	}
	test := slices.Clone(h.Test)
	if test[0] == "CMD-SHELL" && len(shell) > 0 {
		test = append(append([]string{"CMD"}, shell...), test[1])
	}
	atLeast0 := func(d time.Duration) protocol.Duration { return protocol.Duration(max(d, 0)) }
	return &protocol.Healthcheck{
		Test: test, Interval: atLeast0(h.Interval), Timeout: atLeast0(h.Timeout), Retries: max(h.Retries, 0),
		StartPeriod: atLeast0(h.StartPeriod), StartInterval: atLeast0(h.StartInterval),
	}
}
