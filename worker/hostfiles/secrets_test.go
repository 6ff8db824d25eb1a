package hostfiles_test

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

func TestSecretsAreNotMountedOverOtherFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tmpfs, mounted, volumes []string
		copied                  string
		want                    bool
	}{
		"nothing":                       {want: true},
		"a tmpfs above":                 {tmpfs: []string{"/run"}, want: true},
		"a tmpfs at the path":           {tmpfs: []string{"/run/secrets/"}},
		"a tmpfs below":                 {tmpfs: []string{"/run/secrets/x"}},
		"a directory of the host above": {mounted: []string{"/run"}},
		"a file of the host below":      {mounted: []string{"/run/secrets/token"}},
		"another path":                  {mounted: []string{"/run/secrets2"}, volumes: []string{"/data"}, want: true},
		"a volume of the image above":   {volumes: []string{"/run"}},
		"a copy into the path":          {copied: "/run/secrets/x"},
		"a copy into the root":          {copied: "/", want: true},
	} {
		spec := docker.ContainerSpec{Tmpfs: map[string]int64{}}
		for _, at := range c.tmpfs {
			spec.Tmpfs[at] = 1 << 20
		}
		var copies []protocol.Copy
		if c.copied != "" {
			copies = []protocol.Copy{{Target: c.copied}, {Target: "/run/secrets", Service: "other"}}
		}
		mounted := append(c.mounted, c.tmpfs...)
		err := hostfiles.MountSecrets(&spec, false, mounted, c.volumes, copies, "")
		if err != nil || (spec.Secrets != "") != c.want {
			t.Errorf("with %s, the mount has the options %q, and the error is %v; a mount is wanted: %v",
				name, spec.Secrets, err, c.want)
		}
		err = hostfiles.MountSecrets(&spec, true, mounted, c.volumes, copies, "")
		if (err == nil) != c.want {
			t.Errorf("with %s, a spec that needs files of secrets gets the error %v", name, err)
		}
	}
}
