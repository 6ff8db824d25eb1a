package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestX_AnImagesVolumesAreNotHostDirectories checks the volumes that an image declares. They are part of the
// container's own layer: they contain the files of the image, count towards the layer's limit, are read-only if the
// layer is, and survive a stop.
func TestX_AnImagesVolumesAreNotHostDirectories(t *testing.T) {
	t.Parallel()
	ref := imageWith(t, "volumes", `VOLUME ["/home", "/srv/data", "/home/box"]`, `CMD ["sleep", "1000"]`)
	hostile := imageWith(t, "volume-etc", `VOLUME /etc`)
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	const look = `cat /proc/mounts | grep -E " (/home|/srv)"; stat -c %U /home /home/box; stat -c %a /srv/data; ` +
		`touch /home/x /srv/data/x && echo written`

	spec := withServices(f, services{"db": {Image: ref, Memory: 32 << 20}}, nil)
	spec.Image = ref
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	check(t, err)
	for _, service := range []string{"", "db"} {
		if got := printedBy(t, ctx, s, service, "sh", "-c", look); got != "root\nbox\n755\nwritten" {
			t.Errorf("in %q: %q", service, got)
		}
	}
	host := engines.Default(t).Host
	for _, c := range []string{containerOf(f, "", "s"), containerOf(f, "", "s.db")} {
		if got := docker(t, host, "inspect", "-f", "{{range .Mounts}}{{.Type}} {{end}}", c); strings.Contains(got,
			"volume") {
			t.Errorf("%s has the mounts %s", c, got)
		}
	}
	check(t, s.Stop(ctx))
	check(t, s.Resume(ctx))
	for _, service := range []string{"", "db"} {
		if got := printedBy(t, ctx, s, service, "ls", "/home/x", "/srv/data/x"); got != "/home/x\n/srv/data/x" {
			t.Errorf("in %q, after a stop: %q", service, got)
		}
	}

	sealed := f.Spec()
	sealed.Image, sealed.ReadOnly = ref, true
	s, err = f.Client.Create(ctx, sealed, sdk.WithID("sealed"))
	check(t, err)
	if r, err := s.Exec(ctx, script("touch /srv/data/x")); err != nil || r.ExitCode == nil || *r.ExitCode == 0 {
		t.Errorf("with read_only a volume can be written: %v, %v", r, err)
	}

	// If a mount is below a volume, the volume is an empty in-memory file system of limited size.
	above := f.Spec()
	above.Image, above.Tmpfs = ref, []protocol.Tmpfs{{Target: "/srv/data/cache", Size: 1 << 20}}
	s, err = f.Client.Create(ctx, above, sdk.WithID("above"))
	check(t, err)
	if got := mustExec(ctx, t, s,
		script(`grep " /srv/data tmpfs" /proc/mounts | grep -c size=32768k; ls /home`)); got != "1\nbox\n" {
		t.Errorf("the volume above a mount: %q", got)
	}

	// A sandbox may replace the path of a volume by a link to another in-memory file system. A restarted worker must
	// not remove that file system.
	led := f.Spec()
	led.Image = ref
	s, err = f.Client.Create(ctx, led, sdk.WithID("led"))
	check(t, err)
	mustExec(ctx, t, s, script("rm -r /srv/data && ln -s /dev/shm /srv/data"))
	w := f.Processes("worker")[0]
	w.Kill()
	w.Restart()
	if got := mustExec(ctx, t, s, script(`grep -c " /dev/shm tmpfs" /proc/mounts`)); got != "1\n" {
		t.Errorf("a worker took away /dev/shm: %q", got)
	}

	refused := f.Spec()
	refused.Image = hostile
	_, err = f.Client.Create(ctx, refused, sdk.WithID("hostile"))
	if e := protocol.AsError(err); e.Code != protocol.FailedPrecondition || e.Field != "spec.image" ||
		!strings.Contains(e.Message, "/etc") {
		t.Errorf("a volume at /etc: %v", err)
	}
	f.Judge()
}
