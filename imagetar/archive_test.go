package imagetar_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/boxfleet/boxfleet/imagetar"
	"github.com/boxfleet/boxfleet/protocol"
)

type file struct{ name, content string }

func pack(files ...file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		// Writing to a buffer does not fail.
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.content))})
		_, _ = io.WriteString(w, f.content)
	}
	_ = w.Close() // writing to a buffer does not fail
	return b.Bytes()
}

func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[h.Name]; twice {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		files[h.Name] = string(content)
	}
}

func addressed(content string) (digest string, f file) {
	sum := sha256.Sum256([]byte(content))
	digest = "sha256:" + hex.EncodeToString(sum[:])
	return digest, file{"blobs/sha256/" + hex.EncodeToString(sum[:]), content}
}

// layout returns an OCI image layout with one image per architecture.
func layout(architectures ...string) []byte {
	files := []file{{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}}
	var manifests []string
	for _, a := range architectures {
		config, c := addressed(`{"architecture":"` + a + `"}`)
		layer, l := addressed("a layer for " + a)
		manifest, m := addressed(`{"config":{"digest":"` + config + `"},"layers":[{"digest":"` + layer + `"}]}`)
		files = append(files, c, l, m)
		manifests = append(manifests, `{"digest":"`+manifest+`","platform":{"os":"linux","architecture":"`+a+`"}}`)
	}
	list, l := addressed(`{"manifests":[` + strings.Join(manifests, ",") + `]}`)
	return pack(append(files, l, file{"index.json", `{"manifests":[{"digest":"` + list + `"}]}`})...)
}

const savedManifest = `[{"Config":"c.json","RepoTags":["debian:12","other:1"],"Layers":["l/layer.tar"]}]`

func saved(manifest string) []byte {
	return pack(
		file{"c.json", "{}"},
		file{"l/layer.tar", "layer"},
		file{"repositories", `{"debian":{}}`},
		file{"manifest.json", manifest},
	)
}

func TestInspectDeterminesTheFormatByContent(t *testing.T) {
	root := pack(file{"etc/passwd", "root"}, file{"blobs/x", "{}"})
	var zipped, squeezed bytes.Buffer
	g := gzip.NewWriter(&zipped)
	z, err := zstd.NewWriter(&squeezed)
	if err != nil {
		t.Fatal(err)
	}
	// Writing to a buffer does not fail.
	_, _ = g.Write(saved(savedManifest))
	_ = g.Close()
	_, _ = z.Write(root)
	_ = z.Close()
	two := strings.Replace(savedManifest, "]}]", `]},{"Config":"d.json"}]`, 1)
	for name, c := range map[string]struct {
		data   []byte
		format string // "": rejected
	}{
		"docker save": {saved(savedManifest), protocol.ImageArchive}, "gzip": {zipped.Bytes(), protocol.ImageArchive},
		"OCI layout": {layout("amd64"), protocol.ImageArchive}, "root filesystem": {root, protocol.ImageRootFS},
		"zstd":       {squeezed.Bytes(), protocol.ImageRootFS},
		"two images": {saved(two), ""}, "empty tar": {pack(), ""}, "empty": {nil, ""},
		"text":    {[]byte(strings.Repeat("no tar at all ", 100)), ""},
		"cut off": {root[:514], ""}, "cut off gzip": {zipped.Bytes()[:zipped.Len()/2], ""}, "bad manifest": {saved("[]"), ""},
		"layout without its manifest": {pack(file{"index.json", `{"manifests":[{"digest":"sha256:00"}]}`}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := imagetar.Inspect(bytes.NewReader(c.data))
			if c.format == "" {
				if protocol.CodeOf(err) != protocol.InvalidArgument {
					t.Errorf("got %+v, %v", info, err)
				}
			} else if err != nil || info.Format != c.format {
				t.Errorf("got %+v, %v", info, err)
			}
		})
	}
}

func TestARenamedArchiveHasOnlyTheNewName(t *testing.T) {
	const ref = "docker.io/library/tools:1"
	for name, data := range map[string][]byte{"docker save": saved(savedManifest),
		"OCI layout": layout("riscv64", "amd64")} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := imagetar.Rename(&out, bytes.NewReader(data), ref, "amd64"); err != nil {
				t.Fatal(err)
			}
			files := unpack(t, out.Bytes())
			var manifest []struct {
				Config   string
				RepoTags []string
				Layers   []string
			}
			if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) != 1 {
				t.Fatalf("%v: %s", err, files["manifest.json"])
			}
			m := manifest[0]
			if len(m.RepoTags) != 1 || m.RepoTags[0] != ref || len(m.Layers) != 1 {
				t.Errorf("got %+v", m)
			}
			if name == "OCI layout" &&
				(files[m.Config] != `{"architecture":"amd64"}` || files[m.Layers[0]] != "a layer for amd64") {
				t.Errorf("got %+v of %v", m, files)
			}
			for _, other := range []string{"repositories", "index.json", "oci-layout"} {
				if _, there := files[other]; there {
					t.Errorf("%s is still in the archive", other)
				}
			}
		})
	}
	if err := imagetar.Rename(
		io.Discard,
		bytes.NewReader(layout("riscv64", "arm64")),
		ref,
		"amd64",
	); protocol.CodeOf(
		err,
	) != protocol.InvalidArgument {
		t.Errorf("missing platform: want invalid_argument, got %v", err)
	}
}

func FuzzInspect(f *testing.F) {
	f.Add(saved(savedManifest))
	f.Add(layout("amd64", "arm64"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := imagetar.Inspect(
			bytes.NewReader(data),
		); err != nil &&
			protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("got %v", err)
		}
		// Rename may refuse the archive, but must not panic.
		_ = imagetar.Rename(io.Discard, bytes.NewReader(data), "x:1", "amd64")
	})
}
