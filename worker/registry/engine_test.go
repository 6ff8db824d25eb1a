package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// A real engine loads the archive that the worker writes while it reads an image from a registry.
func TestAnEngineLoadsTheArchive(t *testing.T) {
	t.Parallel()
	word := strings.ToLower(rand.Text())
	e, err := docker.Connect(t.Context(), docker.Config{Deployment: "registry-" + word, Fence: docker.Unfenced})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var layer, packed bytes.Buffer
	out := tar.NewWriter(&layer)
	if err := errors.Join(writeFile(out, word, []byte("content")), out.Close()); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	_, err = z.Write(layer.Bytes())
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	c := newContentOf(packed.Bytes(), digestOf(layer.Bytes()))
	r := serve(t, "127.0.0.2", func(w http.ResponseWriter, q *http.Request) { c.answer(w, q, "") })
	client, name := clientFor(t, r), "boxfleet.local/test-"+word+":1"
	defer func() {
		if err := e.RemoveImage(context.Background(), name); err != nil {
			t.Error(err)
		}
	}()
	var last protocol.PullProgress
	err = e.TakeImage(t.Context(), r.host+"/team/app:1", func(ctx context.Context) (docker.Archive, error) {
		i, err := client.Open(ctx, r.host+"/team/app:1", "amd64", Login{})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, w io.Writer, moved func(string, int64, int64)) error {
			return i.Write(ctx, w, name, moved)
		}, nil
	}, func(p protocol.PullProgress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	found, err := e.FindImage(t.Context(), name)
	if err != nil || found.ID == "" || !last.Complete || last.LayersDone != 1 ||
		last.Done != protocol.Bytes(packed.Len()) {
		t.Errorf("got the image %+v, %v; progress %+v", found, err, last)
	}
	id, err := e.CreateContainer(t.Context(), docker.ContainerSpec{Name: "boxfleet-test-" + word, Image: name,
		Entrypoint: []string{"/x"}})
	if err != nil {
		t.Fatal(err)
	}
	content, err := e.ReadFile(t.Context(), id, "/"+word, 100)
	if err != nil || string(content) != "content" {
		t.Errorf("got the content %q, %v", content, err)
	}
	if err := e.RemoveContainer(t.Context(), id); err != nil {
		t.Error(err)
	}
}
