package worker

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/network"
)

func TestWorkerDefaultsThatTheHostCannotMeetAreRefusedWithTheirNames(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Memory: 1 << 30, Runtimes: []string{"runsc"}, Tools: []string{"git"}, ToolsHome: dir}
	w := &worker{info: docker.Info{Runtimes: []string{"runsc"}}, isolation: &network.Isolation{}}
	var err error
	if w.files.Mounts, err = hostfiles.NewPolicy([]string{dir}, nil); err != nil {
		t.Fatal(err)
	}
	if w.files.Tools, err = hostfiles.NewToolbox(cfg.Tools, cfg.ToolsHome, "", w.files.Mounts); err != nil {
		t.Fatal(err)
	}
	if w.abilities, err = abilities.New(abilities.Config{Runtimes: cfg.Runtimes}, w.info); err != nil {
		t.Fatal(err)
	}
	for want, defaults := range map[string]*protocol.SandboxSpec{
		"": nil,
		" ": {Runtime: "runsc", Memory: 1 << 30, Tools: []string{"git"},
			Mounts: []protocol.Mount{{Source: dir, Target: "/m"}}, Env: map[string]string{"A": "1"}},
		"worker.defaults.labels: cannot":               {Labels: map[string]string{"a": "b"}},
		"worker.defaults.runtime: the host's operator": {Runtime: "runc"},
		"worker.defaults.profile: the host's operator": {Profile: protocol.ProfileStandard},
		"worker.defaults.network: the host's operator": {Network: &protocol.Network{Mode: protocol.NetworkNone}},
		"worker.defaults.mounts[1].source: /etc is not below": {Mounts: []protocol.Mount{{Source: dir, Target: "/m"},
			{Source: "/etc", Target: "/n"}}},
		"worker.defaults.mounts[0].writable: " + dir + " may": {Mounts: []protocol.Mount{{Source: dir, Target: "/m",
			Writable: true}}},
		"worker.defaults.mounts[0].source: " + dir + "/x: ": {Mounts: []protocol.Mount{{Source: dir + "/x",
			Target: "/m"}}},
		"worker.defaults.tools[0]: the host does not offer npm": {Tools: []string{"npm"}},
		"worker.defaults.disk: the engine's storage":            {Disk: 1 << 30},
		"worker.defaults.memory: is more than the 1GiB that":    {Memory: 2 << 30},
	} {
		w.cfg = cfg
		w.cfg.Defaults = defaults
		err := w.checkDefaults()
		if strings.TrimSpace(want) == "" && err != nil {
			t.Errorf("defaults that the host can meet were refused: %v", err)
		} else if want = strings.TrimSpace(want); want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("checking the defaults: got %v, want an error with %q", err, want)
		}
	}
}
