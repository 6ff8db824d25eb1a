package integration

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/integration/registry"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/worker"
)

// imagesOf lists the names of images on an engine.
func imagesOf(t *testing.T, host string) string {
	return docker(t, host, "images", "--format", "{{.Repository}}:{{.Tag}}")
}

// TestUnusedImagesAreRemovedAboveTheBound sets a limit on the size of pulled images. Above the limit, the worker
// removes images: large images and images unused for a long time come first. It keeps images that are in use,
// configured to be kept, or foreign.
func TestUnusedImagesAreRemovedAboveTheBound(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, false)
	engines.LoadImage(t, h.engine, fleet.Image) // a foreign image
	kept, _ := h.push("kept:1", 3*mebibyte)
	used, _ := h.push("used:1", 3*mebibyte)
	one, _ := h.push("one:1", 3*mebibyte)
	two, _ := h.push("two:1", 3*mebibyte)
	foreign, _ := h.push("foreign:1", 3*mebibyte)
	docker(t, h.engine.Host, "pull", "-q", foreign)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	// The limit leaves room for three of these images. Each image consists of 3 MB of its own and a base of 2 MB.
	role := fleet.Role{Engine: h.engine.Host,
		Images: worker.Images{MaxBytes: 18 * mebibyte, Registries: []string{h.door.Host}, PrePull: []string{kept},
			HighWater: 100, Sweep: 200 * time.Millisecond}}
	w := f.Worker("w1", role)
	ctx := f.Context(90 * time.Second)
	create := func(id, ref string) *sdk.Sandbox {
		s, err := f.Client.Create(ctx, imageSpec(f, ref, ""), sdk.WithID(id))
		if err != nil {
			t.Fatalf("create %s: %v", id, err)
		}
		return s
	}
	f.Eventually(20*time.Second, "the configured image is pulled", func() error {
		if !strings.Contains(imagesOf(t, h.engine.Host), kept) {
			return errors.New("it is not pulled yet")
		}
		return nil
	})
	create("used", used)
	create("foreign", foreign)
	for id, ref := range map[string]string{"one": one, "foreign": foreign} {
		s := f.Client.Sandbox(id)
		if id == "one" {
			s = create(id, ref)
		}
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // below the limit, sweeps in this time must remove nothing
	if got := imagesOf(t, h.engine.Host); !strings.Contains(got, one) {
		t.Errorf("below the bound, an image was removed; left: %s", got)
	}
	w.Stop() // a new worker must know which images the old worker pulled
	f.Worker("w1", role)
	create("two", two)
	f.Eventually(10*time.Second, "the unused image is removed", func() error {
		if got := imagesOf(t, h.engine.Host); strings.Contains(got, one) {
			return errors.New(got)
		}
		return nil
	})
	time.Sleep(time.Second) // more sweeps in this time must remove nothing else
	got := imagesOf(t, h.engine.Host)
	for _, ref := range []string{kept, used, two, foreign, fleet.Image} {
		if !strings.Contains(got, ref) {
			t.Errorf("%s went: %s", ref, got)
		}
	}
	want := map[string]string{kept: "pre_pull ready", used: "pulled ready", two: "pulled ready"}
	// The worker reports images with a delay.
	f.Eventually(10*time.Second, "the host lists the remaining images", func() error {
		hosts, err := sdk.ReadAll(f.Operator.Images().OnHosts(ctx))
		if err != nil || len(hosts) != 1 {
			return fmt.Errorf("%v, %v", hosts, err)
		}
		listed := map[string]string{}
		for _, i := range hosts[0].Images {
			listed[i.Ref] = i.Origin + " " + i.State
		}
		if !maps.Equal(listed, want) {
			return fmt.Errorf("listed are %v, want %v", listed, want)
		}
		return nil
	})
}

// TestPrivateImagesTakeTheWorkersCredentials checks that a pull without credentials or with wrong credentials is
// denied. A cached image does not bypass the registry's check.
func TestPrivateImagesTakeTheWorkersCredentials(t *testing.T) {
	t.Parallel()
	h := newWarehouse(t, true)
	ref, digest := h.push("secret:1", 1000)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(90 * time.Second)
	try := func(id, pull string) (*sdk.Sandbox, error) {
		return f.Client.Create(ctx, imageSpec(f, ref, pull), sdk.WithID(id))
	}
	role := func(config string, check bool) fleet.Role {
		return fleet.Role{Engine: h.engine.Host,
			Images: worker.Images{Registries: []string{h.door.Host}, DockerConfig: config, CheckCached: check}}
	}
	none, wrong, right := t.TempDir(), registry.Login(t, h.door.Host, "wrong"), registry.Login(t, h.door.Host,
		registry.Password)

	w := f.Worker("w1", role(none, false))
	_, err := try("none", "")
	hasError(t, "without credentials", err, protocol.PermissionDenied, protocol.ReasonImageDenied)
	w.Stop()
	w = f.Worker("w1", role(wrong, false))
	_, err = try("wrong", "")
	hasError(t, "with wrong credentials", err, protocol.PermissionDenied, protocol.ReasonImageDenied)
	w.Stop()
	w = f.Worker("w1", role(right, false))
	s, err := try("right", "")
	if err != nil || s.Info().Digest != digest {
		t.Fatalf("with right credentials: %+v, %v", s, err)
	}
	w.Stop()
	w = f.Worker("w1", role(none, false))
	if _, err = try("cached", ""); err != nil {
		t.Errorf("cached: %v", err)
	}
	_, err = try("asked", protocol.PullAlways)
	hasError(t, "cached, with pull always", err, protocol.PermissionDenied, protocol.ReasonImageDenied)
	w.Stop()
	f.Worker("w1", role(none, true))
	_, err = try("checked", "")
	hasError(t, "cached, where the worker checks", err, protocol.PermissionDenied, protocol.ReasonImageDenied)
}

// TestImagesAreImportedWithoutARegistry imports an archive and a root file system to every host, including a host that
// joins later. It then removes the imports.
func TestImagesAreImportedWithoutARegistry(t *testing.T) {
	t.Parallel()
	e, late := engines.Start(t, "imports"), engines.Start(t, "late")
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(120 * time.Second)
	dir := t.TempDir()
	archive, root := filepath.Join(dir, "archive.tar"), filepath.Join(dir, "root.tar")
	main := engines.Default(t).Host
	docker(t, main, "save", "-o", archive, fleet.Image)
	container := docker(t, main, "create", fleet.Image)
	docker(t, main, "export", "-o", root, container)
	docker(t, main, "rm", container)

	// Imported images stay even if almost no space is left.
	role := fleet.Role{Engine: e.Host, Images: worker.Images{HighWater: 100, MaxBytes: 1}}
	w := f.Worker("w1", role)
	cli := buildCLI(t)
	boxfleet := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, cli, append(f.OperatorFlags(), args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("boxfleet %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	out := boxfleet("image", "import", archive, "--ref", "imported:archive")
	if !strings.Contains(out, "w1") || !strings.Contains(out, "ready") {
		t.Errorf("import printed %s", out)
	}
	boxfleet("image", "import", root, "--ref", "imported:root", "--change", "ENV COLOUR=red", "--change", "USER box")
	for id, ref := range map[string]string{"archive": "imported:archive", "root": "imported:root"} {
		s, err := f.Client.Create(ctx, imageSpec(f, ref, protocol.PullNever), sdk.WithID(id))
		if err != nil {
			t.Fatalf("create of %s: %v", ref, err)
		}
		r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo $COLOUR; id -un"}})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"archive": "\nroot\n", "root": "red\nbox\n"}[id]; string(r.Stdout) != want {
			t.Errorf("in %s: %q, want %q", ref, r.Stdout, want)
		}
		if d := s.Info().Digest; d != "" {
			t.Errorf("%s comes from no registry but has the digest %s", ref, d)
		}
	}
	if got := imagesOf(t, e.Host); strings.Contains(got, fleet.Image) {
		t.Errorf("the archive's own name was taken over: %s", got)
	}
	if out := boxfleet("image", "list"); strings.Count(out, "imported") < 4 {
		t.Errorf("list printed %s", out)
	}

	t.Run("the worker restores a removed image, and a worker that joins gets it", func(t *testing.T) {
		w.Stop()
		for _, id := range []string{"archive", "root"} {
			docker(t, e.Host, "rm", "-f", containerOf(f, e.Host, id))
		}
		deployment := f.Conn.Deployment()
		docker(t, e.Host, "rmi", "-f", imageref.Local(deployment, "imported", "docker.io/library/imported:archive"),
			imageref.Local(deployment, "imported", "docker.io/library/imported:root"))
		f.Worker("w1", role)
		lateRole := role
		lateRole.Engine = late.Host
		f.Worker("w2", lateRole)
		for _, host := range []string{e.Host, late.Host} {
			f.Eventually(20*time.Second, "both images are on "+host, func() error {
				if got := imagesOf(t, host); !strings.Contains(got, "imported:archive") ||
					!strings.Contains(got, "imported:root") {
					return errors.New(got)
				}
				return nil
			})
		}
		if _, err := f.Client.Create(ctx, imageSpec(f, "imported:root", ""), sdk.WithID("again")); err != nil {
			t.Error(err)
		}
		boxfleet("image", "remove", "imported:archive")
		for _, host := range []string{e.Host, late.Host} {
			f.Eventually(20*time.Second, "the removed image disappears from "+host, func() error {
				if got := imagesOf(t, host); strings.Contains(got, "imported:archive") ||
					!strings.Contains(got, "imported:root") {
					return errors.New(got)
				}
				return nil
			})
		}
	})
}
