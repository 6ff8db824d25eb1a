package registry

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// Client reads images from registries at public addresses.
type Client struct {
	transport *http.Transport
}

// New returns a client that connects only to public addresses, and to no address in the denied ranges.
func New(denied []netip.Prefix) *Client {
	return &Client{transport: newTransport(public(denied))}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Login holds the credentials for a registry. The zero value is an anonymous login.
type Login struct {
	Username, Password string
	IdentityToken      string // exchanged for a token, in place of a password
	RegistryToken      string // sent as a bearer token
}

// Image is an image in a registry.
type Image struct {
	Digest string // digest of the manifest or, for several platforms, of the index of manifests

	ref    string
	known  bool // the client has credentials for the registry
	image  v1.Image
	config []byte
}

// maxConfig is the maximum size of an image's configuration, in bytes.
const maxConfig = 4 << 20

// Open finds an image for linux and the given architecture by its full reference. It reads the image's manifest and
// configuration, and [Image.Write] reads the layers. ctx must not end before Write returns.
//
// Errors:
//   - invalid_argument for a reference that registries do not accept
//   - permission_denied with reason policy_denied if the image leads to an address outside the public internet
//   - permission_denied with reason image_denied if the registry denies access
//   - not_found with reason image_not_found
//   - unavailable with reason registry_unreachable
//   - unavailable with reason image_pull_failed for every other failure
func (c *Client) Open(ctx context.Context, ref, architecture string, login Login) (*Image, error) {
	i := &Image{ref: ref, known: login != Login{}}
	named, err := name.ParseReference(ref, name.StrictValidation)
	if err != nil { // for example a name of one letter, which Docker accepts but registries do not
		return nil, protocol.Invalid("spec.image", "%.200q is not an image reference that registries accept", ref)
	}
	auth := authn.FromConfig(authn.AuthConfig{Username: login.Username, Password: login.Password,
		IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken})
	if !i.known {
		auth = authn.Anonymous
	}
	found, err := remote.Get(named,
		remote.WithContext(ctx), remote.WithTransport(&guard{next: c.transport, registry: imageref.Registry(ref)}),
		remote.WithAuth(auth),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}))
	if err != nil {
		return nil, i.failed(ctx, err)
	}
	i.Digest = found.Digest.String()
	if i.image, err = found.Image(); err != nil {
		return nil, i.failed(ctx, err)
	}
	manifest, err := i.image.Manifest()
	if err == nil && manifest.Config.Size > maxConfig {
		err = errTooLong
	}
	if err == nil {
		i.config, err = i.image.RawConfigFile()
	}
	if err != nil {
		return nil, i.failed(ctx, err)
	}
	return i, nil
}

// saved is the manifest of an archive in the format of docker save.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Write writes the image as an archive, under the given name. While Write writes a layer, it calls moved with the
// number of bytes of that layer written so far. Write verifies the content against its digests. It returns the errors
// of [Client.Open], and returns errors of w unchanged.
func (i *Image) Write(ctx context.Context, w io.Writer, as string, moved func(layer string, done, total int64)) error {
	layers, err := i.image.Layers()
	if err != nil {
		return i.failed(ctx, err)
	}
	config, err := i.image.ConfigName()
	if err != nil {
		return i.failed(ctx, err)
	}
	out := tar.NewWriter(w)
	index := saved{Config: config.Hex + ".json", RepoTags: []string{as}}
	if err := writeFile(out, index.Config, i.config); err != nil {
		return err
	}
	written := map[string]bool{}
	for _, layer := range layers {
		file, err := i.writeLayer(ctx, out, layer, written, moved)
		if err != nil {
			return err
		}
		index.Layers = append(index.Layers, file)
	}
	manifest, err := json.Marshal([]saved{index})
	if err != nil {
		return err
	}
	if err := writeFile(out, "manifest.json", manifest); err != nil {
		return err
	}
	return out.Close()
}

func writeFile(out *tar.Writer, file string, content []byte) error {
	err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = out.Write(content)
	}
	return err
}

// writeLayer writes a layer as the registry sends it, compressed or not. It writes each layer only once.
func (i *Image) writeLayer(ctx context.Context, out *tar.Writer, layer v1.Layer, written map[string]bool,
	moved func(string, int64, int64)) (file string, err error) {
	digest, err := layer.Digest()
	if err != nil {
		return "", i.failed(ctx, err)
	}
	if file = digest.Hex + ".tar"; written[file] {
		return file, nil
	}
	written[file] = true
	size, err := layer.Size()
	if err != nil {
		return "", i.failed(ctx, err)
	}
	moved(digest.Hex, 0, size)
	content, err := layer.Compressed()
	if err != nil {
		return "", i.failed(ctx, err)
	}
	defer content.Close()
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, Size: size}); err != nil {
		return "", err
	}
	watched := &remoteReader{r: content, moved: func(done int64) { moved(digest.Hex, done, size) }}
	n, err := io.Copy(out, watched)
	if watched.err != nil {
		return "", i.failed(ctx, watched.err)
	}
	if err == nil && n < size {
		return "", i.failed(ctx, io.ErrUnexpectedEOF)
	}
	return file, err
}

// remoteReader reports how much was read. It keeps the registry's error, so that this error is not mistaken for an
// error of the writer.
type remoteReader struct {
	r     io.Reader
	done  int64
	moved func(int64)
	err   error
}

func (r *remoteReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.done += int64(n)
		r.moved(r.done)
	}
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
