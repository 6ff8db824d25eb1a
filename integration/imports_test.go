package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// A user builds images on a machine of the fleet. Neither an import nor its removal changes the names of the user's
// images, and specs still find the imported images.
func TestAnImportLeavesTheHostsImageNamesAlone(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	host, dir := engines.Default(t).Host, t.TempDir()
	state := filepath.Join(dir, "state")
	ctx := f.Context(2 * time.Minute)
	word := strings.ToLower(rand.Text()[:10])
	same, theirs, ours, older, lost := "same-"+word+":1", "theirs-"+word+":1", "ours-"+word+":1", "older-"+word+":1",
		"lost-"+word+":1"
	local := func(ref string) string {
		return imageref.Local(f.Conn.Deployment(), "imported", "docker.io/library/"+ref)
	}
	t.Cleanup(func() {
		for _, ref := range []string{same, theirs, ours, older, lost} {
			_ = exec.Command("docker", "-H", host, "rmi", ref, local(ref)).Run() // fails for names that do not exist
		}
	})
	id := func(ref string) string {
		out, err := exec.Command("docker", "-H", host, "image", "inspect", "--format", "{{.Id}}", ref).Output()
		if err != nil {
			return "" // the name does not exist
		}
		return strings.TrimSpace(string(out))
	}
	archive, root := filepath.Join(dir, "archive.tar"), filepath.Join(dir, "root.tar")
	data, _ := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "theirs"})
	if err := os.WriteFile(root, data, 0o600); err != nil {
		t.Fatal(err)
	}
	docker(t, host, "tag", fleet.Image, same)
	docker(t, host, "save", "-o", archive, same)
	docker(t, host, "import", root, theirs)
	was := id(theirs)
	f.Worker("w1", fleet.Role{StateDir: state}).Stop() // the worker creates its state directory
	found, err := filepath.Glob(filepath.Join(state, f.Conn.Deployment(), "*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	// An older version tagged an imported image with its plain name and recorded the image. Here are two such images:
	// the name of the first was free, and the second took its name from a user's image.
	wants := map[string]*protocol.WantedImage{}
	for _, ref := range []string{same, theirs, ours, older, lost} {
		wants[ref] = importArchive(ctx, t, f, archive, ref)
	}
	records := map[string]any{}
	for _, ref := range []string{older, lost} {
		docker(t, host, "tag", fleet.Image, ref)
		records["docker.io/library/"+ref] = map[string]any{"id": id(ref), "size": 1, "origin": "imported",
			"file": wants[ref].Digest, "others": ref == lost, "used_at": time.Now()}
	}
	written, err := json.Marshal(records)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(found[0], "images.json"), written, 0o600); err != nil {
		t.Fatal(err)
	}
	f.Worker("w1", fleet.Role{StateDir: state})
	for ref, want := range wants {
		f.Eventually(20*time.Second, "the import of "+ref, func() error { // the fleet may not list the host yet
			hosts, err := f.Operator.Images().Wait(ctx, want, nil)
			if err == nil && hosts["w1"].State != protocol.ImageReady {
				err = errors.New(string(hosts["w1"].State))
			}
			return err
		})
	}
	f.Eventually(10*time.Second, "an older import has only its new name", func() error {
		if id(older) != "" || id(local(older)) == "" {
			return errors.New(id(older))
		}
		return nil
	})
	if id(theirs) != was || id(same) == "" || id(lost) == "" || id(ours) != "" || id(local(ours)) == "" {
		t.Errorf("names of the host are %q (was %q), %q, %q and %q, and of the worker %q", id(theirs), was, id(same),
			id(lost), id(ours), id(local(ours)))
	}
	for _, ref := range []string{theirs, ours, older} { // the image theirs does not contain the program
		s, err := f.Client.Create(ctx, imageSpec(f, ref, protocol.PullNever),
			sdk.WithID(strings.SplitN(ref, "-", 2)[0]))
		if err != nil {
			t.Errorf("a sandbox of the image imported as %s: %v", ref, err)
			continue
		}
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	for ref := range wants {
		if err := f.Operator.Images().Remove(ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually(20*time.Second, "the worker forgets the imports and removes its own names", func() error {
		for ref := range wants {
			if name := local(ref); id(name) != "" {
				return errors.New(name + " is there")
			}
		}
		return nil
	})
	if id(theirs) != was || id(same) == "" || id(lost) == "" {
		t.Errorf("of the host's names there are %q (was %q), %q and %q", id(theirs), was, id(same), id(lost))
	}
}

// importArchive imports an archive of an image under a name.
func importArchive(ctx context.Context, t *testing.T, f *fleet.Fleet, archive, ref string) *protocol.WantedImage {
	t.Helper()
	content, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	want, err := f.Operator.Images().Import(ctx, ref, content)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// An import in a fleet without hosts does not wait. A host that joins later gets the image.
func TestAnImportWithoutHostsDoesNotWait(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(20 * time.Second)
	data, _ := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"})
	want, err := f.Operator.Images().Import(ctx, "early:1", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if hosts, err := f.Operator.Images().Wait(ctx, want, nil); err != nil || len(hosts) > 0 {
		t.Errorf("waited for %v, %v", hosts, err)
	}
}
