package docker

import (
	"reflect"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnImagesHealthcheckMeansTheSameAsToTheEngine(t *testing.T) {
	for name, c := range map[string]struct {
		health *container.HealthConfig
		shell  []string
		want   *protocol.Healthcheck
	}{
		"none":       {},
		"inherited":  {health: &container.HealthConfig{Interval: time.Second}},
		"off":        {health: &container.HealthConfig{Test: []string{"NONE"}}},
		"no command": {health: &container.HealthConfig{Test: []string{"CMD"}}},
		"a command": {health: &container.HealthConfig{Test: []string{"CMD", "a", "b"}, Interval: time.Second,
			Timeout: 2 * time.Second, Retries: 4, StartPeriod: time.Minute, StartInterval: 5},
			want: &protocol.Healthcheck{Test: []string{"CMD", "a", "b"}, Interval: protocol.Duration(time.Second),
				Timeout: protocol.Duration(2 * time.Second), Retries: 4,
				StartPeriod: protocol.Duration(time.Minute), StartInterval: 5}},
		"a shell command": {health: &container.HealthConfig{Test: []string{"CMD-SHELL", "a b"}},
			want: &protocol.Healthcheck{Test: []string{"CMD-SHELL", "a b"}}},
		"a shell command for the image's shell": {health: &container.HealthConfig{Test: []string{"CMD-SHELL", "a b"}},
			shell: []string{"bash", "-c"}, want: &protocol.Healthcheck{Test: []string{"CMD", "bash", "-c", "a b"}}},
		"a negative interval": {health: &container.HealthConfig{Test: []string{"CMD", "a"}, Interval: -1, Retries: -1},
			want: &protocol.Healthcheck{Test: []string{"CMD", "a"}}},
	} {
		if got := healthcheckOf(c.health, c.shell); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
