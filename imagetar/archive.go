package imagetar

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Files that describe the content of an archive.
const (
	manifestFile = "manifest.json" // written by docker save
	indexFile    = "index.json"    // index of an OCI image layout
	layoutFile   = "oci-layout"
	oldNamesFile = "repositories" // written by docker save before it had a manifest
)

// Limits on the bytes of an archive held in memory: for one document, and for all documents.
const (
	maxDocument  = 4 << 20
	maxDocuments = 64 << 20
)

// Info describes an image file.
type Info struct {
	Format string   // protocol.ImageArchive or protocol.ImageRootFS
	Names  []string // names of the image in the archive; empty for a root filesystem
}

// saved is an entry of docker save's manifest.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// descriptor and document have the relevant fields of an OCI image layout.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

type document struct {
	Manifests []descriptor `json:"manifests"` // in an index
	Config    *descriptor  `json:"config"`    // in a manifest
	Layers    []descriptor `json:"layers"`
}

// Inspect reads a file to its end and determines its format. Errors: invalid_argument if the file is not a tar
// archive, has no entries, or is an image archive without exactly one image.
func Inspect(r io.Reader) (Info, error) {
	a := archive{documents: map[string][]byte{}}
	if err := a.read(r, nil); err != nil {
		return Info{}, err
	}
	if !a.isArchive() {
		if a.entries == 0 {
			return Info{}, protocol.Invalid("file", "has no entries")
		}
		return Info{Format: protocol.ImageRootFS}, nil
	}
	image, err := a.image("")
	return Info{Format: protocol.ImageArchive, Names: image.RepoTags}, err
}

// Rename copies an archive with one image to an uncompressed archive that any engine can load. The copy has a docker
// save manifest, and ref, a full reference, as its only name. If the image is for several platforms, Rename takes the
// linux image for the given architecture. Errors: invalid_argument for a bad archive, and the errors of r and w.
func Rename(w io.Writer, r io.Reader, ref, architecture string) error {
	a := archive{documents: map[string][]byte{}}
	out := tar.NewWriter(w)
	if err := a.read(r, out); err != nil {
		return err
	}
	image, err := a.image(architecture)
	if err != nil {
		return err
	}
	image.RepoTags = []string{ref}
	manifest, err := json.Marshal([]saved{image})
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: manifestFile, Mode: 0o644, Size: int64(len(manifest))}
	if err = out.WriteHeader(header); err == nil {
		_, err = out.Write(manifest)
	}
	return errors.Join(err, out.Close())
}

// archive is the state of reading an archive.
type archive struct {
	entries   int
	kept      int64
	documents map[string][]byte // small JSON files by name
}

// read reads a file to its end. It keeps the documents that may describe the image and, unless out is nil,
// copies everything else to out.
func (a *archive) read(r io.Reader, out *tar.Writer) error {
	plain, err := Open(r)
	if err != nil {
		return invalid(err)
	}
	in := tar.NewReader(plain)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return invalid(err)
		}
		a.entries++
		if err := a.entry(h, in, out); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, plain) // reads the padding
	return invalid(err)
}

func (a *archive) entry(h *tar.Header, in io.Reader, out *tar.Writer) error {
	name := path.Clean(h.Name)
	var content []byte
	if h.Typeflag == tar.TypeReg && h.Size <= maxDocument && mayDescribeImage(name) && a.kept < maxDocuments {
		var err error
		if content, err = io.ReadAll(in); err != nil {
			return invalid(err)
		}
		if len(content) > 0 && (content[0] == '{' || content[0] == '[') {
			a.kept += int64(len(content))
			a.documents[name] = content
		}
	}
	switch {
	case out == nil, name == manifestFile, name == indexFile, name == layoutFile, name == oldNamesFile:
		return nil // superseded by the manifest that Rename writes
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if content != nil {
		_, err := out.Write(content)
		return err
	}
	_, err := io.Copy(out, in)
	return err
}

// mayDescribeImage reports whether a file of this name may describe an archive. The index and manifests of an OCI
// layout are among its blobs.
func mayDescribeImage(name string) bool {
	return name == manifestFile || name == indexFile || strings.HasPrefix(name, "blobs/")
}

func (a *archive) isArchive() bool {
	return a.documents[manifestFile] != nil || a.documents[indexFile] != nil
}

// image returns the only image of the archive.
func (a *archive) image(architecture string) (saved, error) {
	if data := a.documents[manifestFile]; data != nil {
		var all []saved
		if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 || all[0].Config == "" {
			return saved{}, protocol.Invalid("file", "cannot read %s: %v", manifestFile, err)
		}
		if len(all) > 1 {
			return saved{}, notOneImage(len(all))
		}
		return all[0], nil
	}
	var index document
	if err := json.Unmarshal(a.documents[indexFile], &index); err != nil {
		return saved{}, protocol.Invalid("file", "cannot read %s: %v", indexFile, err)
	}
	if len(index.Manifests) != 1 {
		return saved{}, notOneImage(len(index.Manifests))
	}
	return a.resolve(index.Manifests[0], architecture, 0)
}

func notOneImage(n int) error {
	return protocol.Invalid("file", "has %d images; import an archive with exactly one", n)
}

// resolve follows an OCI descriptor to a manifest, through the indexes of multi-platform images. An empty
// architecture selects the first platform.
func (a *archive) resolve(d descriptor, architecture string, depth int) (saved, error) {
	var doc document
	data := a.documents[blob(d.Digest)]
	if data == nil || json.Unmarshal(data, &doc) != nil || depth > 3 {
		return saved{}, protocol.Invalid("file", "the manifest %.80q is missing or invalid", d.Digest)
	}
	if doc.Config != nil {
		image := saved{Config: blob(doc.Config.Digest)}
		for _, l := range doc.Layers {
			image.Layers = append(image.Layers, blob(l.Digest))
		}
		if name := d.Annotations["io.containerd.image.name"]; name != "" {
			image.RepoTags = []string{name}
		}
		return image, nil
	}
	for _, m := range doc.Manifests {
		if p := m.Platform; architecture == "" || p == nil || p.OS == "linux" && p.Architecture == architecture {
			return a.resolve(m, architecture, depth+1)
		}
	}
	return saved{}, protocol.Invalid("file", "has no image for linux/%s", architecture)
}

// blob returns the path of a digest's content in an OCI layout.
func blob(digest string) string {
	algorithm, sum, _ := strings.Cut(digest, ":")
	return fmt.Sprintf("blobs/%s/%s", algorithm, sum)
}

// invalid converts a read error to invalid_argument. Errors that already have a code, such as the errors of a failing
// source, stay as they are.
func invalid(err error) error {
	var typed *protocol.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	return protocol.Invalid("file", "is not a tar archive, or is truncated: %v", err)
}
