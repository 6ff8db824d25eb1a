package integration

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Somebody builds an image on a machine of the fleet, and imports it from there: the name stays theirs.
func TestAnImportUnderANameOfTheHostsNeverRemovesIt(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	host, dir := engines.Default(t).Host, t.TempDir()
	f.Worker("w1", fleet.Role{})
	ctx := f.Context(2 * time.Minute)
	word := strings.ToLower(rand.Text()[:10])
	same, moved, ours := "built-"+word+":1", "moved-"+word+":1", "ours-"+word+":1"
	var nameless []string // once their name was moved
	t.Cleanup(func() {
		for _, ref := range append(nameless, same, moved, ours) {
			_ = exec.Command("docker", "-H", host, "rmi", ref).Run() // some are gone
		}
	})
	id := func(ref string) string {
		out, err := exec.Command("docker", "-H", host, "image", "inspect", "--format", "{{.Id}}", ref).Output()
		if err != nil {
			return "" // there is none
		}
		return strings.TrimSpace(string(out))
	}
	archive, root, second := filepath.Join(dir, "archive.tar"), filepath.Join(dir, "root.tar"), filepath.Join(dir, "second.tar")
	docker(t, host, "tag", fleet.Image, same)
	docker(t, host, "tag", fleet.Image, moved)
	docker(t, host, "save", "-o", archive, same)
	for _, file := range []string{root, second} {
		data, _ := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(file)})
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	imports := func(ref, file string) *protocol.WantedImage {
		t.Helper()
		content, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		want, err := f.Client.ImportImage(ctx, sdk.ImageFile{Ref: ref, Content: content})
		if err != nil {
			t.Fatal(err)
		}
		return want
	}
	shown := func(ref string) (found protocol.HostImage) {
		t.Helper()
		_, hosts, err := f.Client.Images(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			for _, i := range h.Images {
				if strings.HasSuffix(i.Ref, "/"+ref) {
					found = i
				}
			}
		}
		return found
	}
	for ref, file := range map[string]string{same: archive, moved: archive, ours: archive} {
		hosts, err := f.Client.WaitImage(ctx, imports(ref, file), nil)
		if err != nil || hosts["w1"].State != protocol.ImageReady {
			t.Fatalf("the import of %s: %+v, %v", ref, hosts, err)
		}
	}
	// Its owner gives a name to another image: it is left alone, and that is said.
	docker(t, host, "import", root, moved)
	other := id(moved)
	nameless = append(nameless, other)
	want := imports(moved, archive)
	f.Eventually(10*time.Second, "it is said that the name is somebody else's", func() error {
		if i := shown(moved); i.State != protocol.ImageFailed || i.Error == nil || i.Error.Code != protocol.AlreadyExists || i.File != want.Digest {
			return fmt.Errorf("it is %+v", i)
		}
		return nil
	})
	if id(moved) != other {
		t.Error("the name was taken away from its owner")
	}
	// Another file under it is what somebody asks for: the name moves, and is not removed either.
	hosts, err := f.Client.WaitImage(ctx, imports(moved, second), nil)
	if err != nil || hosts["w1"].State != protocol.ImageReady || id(moved) == other {
		t.Fatalf("the import of another file: %+v, %v", hosts, err)
	}
	other = id(moved)
	for _, ref := range []string{same, moved, ours} {
		if err := f.Client.RemoveImage(ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually(20*time.Second, "the worker forgets them, and removes its own", func() error {
		for _, ref := range []string{same, moved, ours} {
			if i := shown(ref); i.Ref != "" {
				return fmt.Errorf("there is %+v", i)
			}
		}
		if id(ours) != "" {
			return errors.New(ours + " is there")
		}
		return nil
	})
	if id(same) == "" || id(moved) != other {
		t.Errorf("of the host's names there are %s and %s", id(same), id(moved))
	}
}

// An import before the first host: nobody is waited for, and the host that comes gets it.
func TestAnImportWithoutHostsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	ctx := f.Context(20 * time.Second)
	data, _ := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"})
	want, err := f.Client.ImportImage(ctx, sdk.ImageFile{Ref: "early:1", Content: bytes.NewReader(data)})
	if err != nil {
		t.Fatal(err)
	}
	if hosts, err := f.Client.WaitImage(ctx, want, nil); err != nil || len(hosts) > 0 {
		t.Errorf("waited for %v, %v", hosts, err)
	}
}
