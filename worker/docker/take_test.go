package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// smallImage returns an archive of an image with one empty layer.
func smallImage(t *testing.T, name, labels string) docker.Archive {
	t.Helper()
	file := func(out *tar.Writer, name string, content []byte) {
		check(t, out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := out.Write(content)
		check(t, err)
	}
	var layer, all bytes.Buffer
	check(t, tar.NewWriter(&layer).Close())
	out := tar.NewWriter(&all)
	file(out, "layer.tar", layer.Bytes())
	file(out, "config.json", fmt.Appendf(nil,
		`{"os": "linux", "architecture": "amd64", "config": {"Labels": {%s}}, `+
			`"rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, labels, sha256.Sum256(layer.Bytes())))
	file(out, "manifest.json", fmt.Appendf(nil, `[{"Config": "config.json", "RepoTags": [%q], "Layers": ["layer.tar"]}]`,
		name))
	check(t, out.Close())
	return func(_ context.Context, w io.Writer, moved func(string, int64, int64)) error {
		_, err := w.Write(all.Bytes())
		moved("layer", int64(layer.Len()), int64(layer.Len()))
		return err
	}
}

func opened(a docker.Archive) func(context.Context) (docker.Archive, error) {
	return func(context.Context) (docker.Archive, error) { return a, nil }
}

func TestAnImageIsLoadedFromAnArchive(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *docker.Config) { c.RetryPause = time.Millisecond })
	ctx, name := t.Context(), "boxfleet.local/"+strings.ToLower(b.name("taken"))+":1"
	t.Cleanup(func() { check(t, b.RemoveImage(context.Background(), name)) })
	var last protocol.PullProgress
	check(t, b.TakeImage(ctx, "registry.test/app:1", opened(smallImage(t, name, "")),
		func(p protocol.PullProgress) { last = p }))
	found, err := b.FindImage(ctx, name)
	check(t, err)
	if found.ID == "" || !last.Complete || last.Image != "registry.test/app:1" || last.Layers != 1 ||
		last.LayersDone != 1 || last.Done == 0 || last.Done != last.Total {
		t.Errorf("the loaded image is %+v, and the last progress %+v", found, last)
	}
	check(t, b.TakeImage(ctx, "registry.test/app:1", opened(nil), nil)) // the engine already has the image
}

func TestErrorsSayWhyAnImageWasNotLoaded(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, func(c *docker.Config) { c.RetryPause = time.Millisecond }), t.Context()
	impatient := newBench(t, func(c *docker.Config) { c.PullStall = 100 * time.Millisecond })
	tries, broken := 0, protocol.Errorf(protocol.Unavailable, protocol.ReasonRegistryUnreachable,
		"it closed the connection")
	write := func(text string, err error) docker.Archive {
		return func(_ context.Context, w io.Writer, _ func(string, int64, int64)) error {
			_, writeErr := io.WriteString(w, text)
			return errors.Join(writeErr, err)
		}
	}
	hang := func(ctx context.Context, _ io.Writer, _ func(string, int64, int64)) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for what, c := range map[string]struct {
		open func(context.Context) (docker.Archive, error)
		want error
	}{
		"no manifest": {func(context.Context) (docker.Archive, error) { return nil, errDenied }, errDenied},
		"a hanging manifest": {func(ctx context.Context) (docker.Archive, error) { return nil, hang(ctx, nil, nil) },
			errStalled},
		"a hanging layer":      {opened(hang), errStalled},
		"an archive of no tar": {opened(write(strings.Repeat("secret", 1000), nil)), errPullFailed},
		"a denied layer":       {opened(write("begun", errDenied)), errDenied},
		"a closed connection": {func(context.Context) (docker.Archive, error) { tries++; return write("begun", broken), nil },
			broken},
	} {
		by := b
		if c.want == error(errStalled) {
			by = impatient
		}
		err := by.TakeImage(ctx, "registry.test/app:"+strings.ReplaceAll(what, " ", "-"), c.open, nil)
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("loading from %s: got %v, want %v without the archive's content", what, err, c.want)
		}
	}
	if tries != 3 {
		t.Errorf("a registry that closes the connection was tried %d times, want 3", tries)
	}
}

// A container has the labels of its image, which may look like labels of Boxfleet.
func TestAContainerIsDoubtfulIfItsImageHasBoxfleetLabels(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	name := "boxfleet.local/" + strings.ToLower(b.name("labels")) + ":1"
	labels := fmt.Sprintf(`"boxfleet.deployment": %q, "boxfleet.sandbox": "other", "boxfleet.gpus": "0,1"`, b.deployment)
	check(t, b.TakeImage(ctx, "registry.test/labels:1", opened(smallImage(t, name, labels)), nil))
	t.Cleanup(func() { check(t, b.RemoveImage(context.Background(), name)) })
	plain := b.sleeper()
	plain.Labels = map[string]string{docker.LabelSandbox: "plain"}
	plainID := b.create(t, plain, false)
	ours := docker.ContainerSpec{Name: b.name("hostile"), Image: name, Entrypoint: []string{"/x"},
		Labels: map[string]string{docker.LabelSandbox: "mine"},
		Binds:  []docker.Bind{{Source: "/etc", Target: "/x", ReadOnly: true}}}
	hostileID := b.create(t, ours, false)
	all, err := b.Containers(ctx)
	check(t, err)
	for _, c := range all {
		inspected, err := b.Inspect(ctx, c.ID)
		check(t, err)
		for _, c := range []docker.Container{c, inspected} {
			hostile := c.Name == ours.Name
			if c.Doubtful != hostile || hostile && (len(c.Binds) != 1 || c.Binds[0] != "/etc" ||
				c.Labels[docker.LabelSandbox] != "mine" || c.Labels[docker.LabelGPUs] != "") {
				t.Errorf("the container is described as %+v; want doubtful: %v", c, hostile)
			}
		}
	}
	if len(all) != 2 {
		t.Errorf("got %d containers, want 2", len(all))
	}
	check(t, b.RemoveContainer(ctx, plainID))
	check(t, b.RemoveContainer(ctx, hostileID))
}
