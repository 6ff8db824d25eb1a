package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/boxfleet/boxfleet/sdk"
)

// The tree that measureFiles copies.
const (
	treeFiles = 1500
	treeEach  = 30      // files in a directory
	treeBytes = 4 << 10 // bytes in a file
)

// measureFiles measures transfers of files and of a tree. It compares them with the engine's archives, which docker cp
// uses.
func measureFiles(ctx context.Context, b *bench) (err error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return err
	}
	s, err := d.client.Create(ctx, spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAll(ctx, []*sdk.Sandbox{s})) }()
	bare, err := b.engine.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.remove(ctx)) }()
	for _, f := range []struct {
		name    string
		size    int64
		samples int
	}{
		{"1 KiB", 1 << 10, b.pick(50, 5)}, {"1 MiB", 1 << 20, b.pick(20, 3)},
		{fmt.Sprint(b.pick(1024, 64), " MiB"), int64(b.pick(1<<30, 1<<26)), b.pick(3, 1)},
	} {
		if err := b.file(ctx, s, bare, f.name, f.size, f.samples); err != nil {
			return err
		}
	}
	return b.tree(ctx, s, bare)
}

// file measures writes and reads of one file. The samples of both sides alternate.
func (b *bench) file(ctx context.Context, s *sdk.Sandbox, bare *box, name string, size int64, samples int) error {
	write := &measurement{Name: "write a file of " + name, Unit: unitMilliseconds}
	read := &measurement{Name: "read a file of " + name, Unit: unitMilliseconds}
	const path = "/tmp/bench-file"
	for range samples {
		for _, step := range []struct {
			into *[]float64
			call func() error
		}{
			{&write.Ours, func() error { _, err := s.Files().Write(ctx, path, zeros(size)); return err }},
			{&write.Bare, func() error { return bare.put(ctx, "/tmp", oneFile("bench-file", size)) }},
			{&read.Ours, func() error { return readAll(ctx, s.Files(), path, size) }},
			{&read.Bare, func() error { return bare.get(ctx, path, size) }},
		} {
			took, err := timed(step.call)
			if err != nil {
				return err
			}
			*step.into = append(*step.into, took)
		}
	}
	b.add(write)
	b.add(read)
	return nil
}

// zeros returns a reader of this many bytes.
func zeros(size int64) io.Reader { return io.LimitReader(zeroReader{}, size) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func readAll(ctx context.Context, files *sdk.Files, path string, size int64) error {
	r, err := files.Read(ctx, path)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, r)
	if err = errors.Join(err, r.Close()); err == nil && n != size {
		err = fmt.Errorf("read %d of %d bytes", n, size)
	}
	return err
}

// tree measures the upload and the download of a directory with many small files.
func (b *bench) tree(ctx context.Context, s *sdk.Sandbox, bare *box) error {
	source := filepath.Join(b.dir, "tree")
	for i := range treeFiles {
		dir := filepath.Join(source, fmt.Sprint("d", i/treeEach))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), make([]byte, treeBytes), 0o644); err != nil {
			return err
		}
	}
	up := &measurement{Name: "upload a tree of 1,500 files", Unit: unitMilliseconds, Target: target{ofP50, 3000}}
	down := &measurement{Name: "download a tree of 1,500 files", Unit: unitMilliseconds}
	for n := range b.pick(5, 1) {
		inside, outside := fmt.Sprint("/tmp/tree", n), filepath.Join(b.dir, fmt.Sprint("down", n))
		for _, step := range []struct {
			into *[]float64
			call func() error
		}{
			{&up.Ours, func() error { _, err := s.Files().Upload(ctx, source, inside); return err }},
			{&up.Bare, func() error {
				return bare.put(ctx, "/tmp", func(w *tar.Writer) error { return w.AddFS(os.DirFS(source)) })
			}},
			{&down.Ours, func() error { _, err := s.Files().Download(ctx, inside, outside); return err }},
		} {
			took, err := timed(step.call)
			if err != nil {
				return err
			}
			*step.into = append(*step.into, took)
		}
	}
	b.add(up)
	b.add(down)
	return nil
}

// oneFile returns a function that writes a tar of one file of zeros.
func oneFile(name string, size int64) func(*tar.Writer) error {
	return func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(w, zeros(size))
		return err
	}
}

// put extracts a tar in the container, as docker cp does.
func (b *box) put(ctx context.Context, dir string, write func(*tar.Writer) error) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		w.CloseWithError(errors.Join(write(t), t.Close()))
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut,
		"http://engine/containers/"+b.id+"/archive?path="+dir, r)
	if err != nil {
		return err
	}
	response, err := b.e.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	message, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("extract in the container: %s: %s", response.Status, message)
	}
	return err
}

// get reads a file of the container, as docker cp does.
func (b *box) get(ctx context.Context, path string, size int64) error {
	body, err := b.e.send(ctx, http.MethodGet, "/containers/"+b.id+"/archive?path="+path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	t := tar.NewReader(body)
	if _, err := t.Next(); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, t)
	if err == nil && n != size {
		err = fmt.Errorf("read %d of %d bytes", n, size)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, body) // the end of the archive, so that the connection can be used again
	}
	return err
}
