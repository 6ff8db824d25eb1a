package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed())) }

// server is an HTTPS server at its own address, such as 127.0.0.2. It records its requests.
type server struct {
	*httptest.Server
	host string // address, including the port

	mu      sync.Mutex
	conns   int
	asked   []*http.Request
	answers func(w http.ResponseWriter, r *http.Request)
}

func serve(t *testing.T, address string, answers func(w http.ResponseWriter, r *http.Request)) *server {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{answers: answers, host: l.Addr().String()}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		s.mu.Unlock()
		s.answers(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
		}
	}
	s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) seen() (conns int, passwords []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.asked {
		if h := r.Header.Get("Authorization"); h != "" {
			passwords = append(passwords, h)
		}
	}
	return s.conns, passwords
}

// clientFor returns a client that treats only the addresses of these servers as public.
func clientFor(t *testing.T, servers ...*server) *Client {
	t.Helper()
	c := &Client{transport: newTransport(func(a netip.AddrPort) bool {
		for _, s := range servers {
			if s.host == a.String() {
				return true
			}
		}
		return false
	})}
	roots := servers[0].Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c.transport.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	t.Cleanup(c.Close)
	return c
}

const (
	secret = "internal-service-says"
)

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// content is the content of a registry with one image. The key of a blob is its digest.
type content struct {
	blobs map[string][]byte
	index []byte
}

func newContent() *content {
	return newContentOf(nil, digestOf(nil), digestOf(nil))
}

// newContentOf returns content with an image for two platforms. The image has one layer for each element of diffs, and
// each layer has the given content. If no content is given, each platform has its own content, which is not a tar.
func newContentOf(given []byte, diffs ...string) *content {
	c := &content{blobs: map[string][]byte{}}
	put := func(data []byte) map[string]any {
		c.blobs[digestOf(data)] = data
		return map[string]any{"mediaType": "application/octet-stream", "digest": digestOf(data), "size": len(data)}
	}
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return data
	}
	manifest := func(architecture string) map[string]any {
		layer := put([]byte("a layer of " + architecture))
		if given != nil {
			layer = put(given)
		}
		layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip"
		config := put(encode(map[string]any{"architecture": architecture, "os": "linux",
			"rootfs": map[string]any{"type": "layers", "diff_ids": diffs}}))
		config["mediaType"] = "application/vnd.oci.image.config.v1+json"
		d := put(encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"config": config, "layers": slices.Repeat([]any{layer}, len(diffs))}))
		d["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
		d["platform"] = map[string]any{"architecture": architecture, "os": "linux"}
		return d
	}
	c.index = encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{manifest("arm64"), manifest("amd64")}})
	c.blobs[digestOf(c.index)] = c.index
	return c
}

// answer responds like a registry without authentication. It redirects requests for layers to layersAt, if that is set.
func (c *content) answer(w http.ResponseWriter, r *http.Request, layersAt string) {
	last := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	data := c.blobs[last]
	if last == "1" {
		data = c.index
	}
	switch {
	case r.URL.Path == "/v2/":
	case data == nil:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"errors": [{"code": "MANIFEST_UNKNOWN", "message": %q}]}`, secret)
	case layersAt != "" && bytes.HasPrefix(data, []byte("a layer")):
		http.Redirect(w, r, layersAt+"/elsewhere/"+last, http.StatusTemporaryRedirect)
	default:
		var m struct{ MediaType string }
		if json.Unmarshal(data, &m) == nil && m.MediaType != "" {
			w.Header().Set("Content-Type", m.MediaType)
		}
		_, _ = w.Write(data) // fails only if the client is gone
	}
}

// withTokens makes a registry require a token. The server at the address realm issues the tokens.
func withTokens(realm *string, next func(w http.ResponseWriter, r *http.Request)) func(w http.ResponseWriter,
	r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/token"):
			fmt.Fprint(w, `{"token": "opened"}`)
		case r.Header.Get("Authorization") != "Bearer opened":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s"`, *realm))
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, secret)
		default:
			next(w, r)
		}
	}
}

func readImage(ctx context.Context, c *Client, ref string, login Login) (files map[string]string, digest string,
	err error) {
	i, err := c.Open(ctx, ref, "amd64", login)
	if err != nil {
		return nil, "", err
	}
	var archive bytes.Buffer
	if err := i.Write(ctx, &archive, "named:as", func(string, int64, int64) {}); err != nil {
		return nil, "", err
	}
	files = map[string]string{}
	in := tar.NewReader(&archive)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return files, i.Digest, nil
		}
		if err != nil {
			return nil, "", err
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return nil, "", err
		}
		files[h.Name] = string(data)
	}
}

func TestAnImageIsReadWithTokensAndThroughRedirects(t *testing.T) {
	t.Parallel()
	c := newContent()
	store := serve(t, "127.0.0.3", func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, "") })
	var realm string
	r := serve(t, "127.0.0.2", withTokens(&realm, func(w http.ResponseWriter,
		q *http.Request) {
		c.answer(w, q, store.URL)
	}))
	realm = r.URL
	for _, ref := range []string{r.host + "/team/app:1", r.host + "/team/app@" + digestOf(c.index)} {
		files, digest, err := readImage(t.Context(), clientFor(t, r, store), ref, Login{Username: "u", Password: "p"})
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		var index []saved
		if err := json.Unmarshal([]byte(files["manifest.json"]), &index); err != nil || len(index) != 1 ||
			len(index[0].Layers) != 2 || index[0].RepoTags[0] != "named:as" {
			t.Fatalf("%s: the manifest is %s: %v", ref, files["manifest.json"], err)
		}
		if got := files[index[0].Layers[1]]; got != "a layer of amd64" ||
			!strings.Contains(files[index[0].Config], `"amd64"`) || len(files) != 3 || digest != digestOf(c.index) {
			t.Errorf("%s: %s: %v", ref, digest, files)
		}
	}
	if _, passwords := store.seen(); len(passwords) > 0 {
		t.Errorf("the server of the layers got the credentials %v", passwords)
	}
}

// In each case, the name of an image leads to a service that only the host can reach.
func TestNoConnectionLeavesThePublicInternet(t *testing.T) {
	t.Parallel()
	inside := serve(t, "127.0.0.1", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, secret) })
	c := newContent()
	var realm string
	byRealm := serve(t, "127.0.0.2", withTokens(&realm, func(w http.ResponseWriter,
		q *http.Request) {
		c.answer(w, q, "")
	}))
	realm = inside.URL
	byLayer := serve(t, "127.0.0.2", func(w http.ResponseWriter, q *http.Request) { c.answer(w, q, inside.URL) })
	byManifest := serve(t, "127.0.0.2", func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, inside.URL+q.URL.Path, http.StatusFound)
	})
	_, port, _ := net.SplitHostPort(inside.host)
	for what, ref := range map[string]string{
		"the token's realm": byRealm.host + "/xx:1", "the redirect of a layer": byLayer.host + "/xx:1",
		"the redirect of a manifest": byManifest.host + "/xx:1",
		"the registry itself":        strings.Replace(inside.host, "127.0.0.1", "127.0.0.5", 1) + "/xx:1",
	} {
		_, _, err := readImage(t.Context(), clientFor(t, byRealm, byLayer, byManifest), ref, Login{})
		if !errors.Is(err, &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonPolicyDenied}) {
			t.Errorf("%s leads to an internal service: got %v, want policy_denied", what, err)
		}
	}
	everybody := New(nil) // the real check refuses all servers of this test, because they are on this machine
	defer everybody.Close()
	for _, ref := range []string{byLayer.host + "/xx:1", "example.com:" + port + "/xx:1"} {
		if strings.HasPrefix(ref, "example.com") {
			// Connect as if the name resolved to the address of the internal service.
			everybody.transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return newTransport(public(nil)).DialContext(ctx, network, inside.host)
			}
		}
		if _, _, err := readImage(t.Context(), everybody, ref, Login{}); !errors.Is(err,
			&protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonPolicyDenied}) {
			t.Errorf("image %s on this machine: got %v, want policy_denied", ref, err)
		}
	}
	if conns, _ := inside.seen(); conns > 0 {
		t.Errorf("the internal service got %d connections", conns)
	}
}

func TestCredentialsAreSentOnlyToTheirRegistry(t *testing.T) {
	t.Parallel()
	other := serve(t, "127.0.0.3", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"token": "opened"}`) })
	c := newContent()
	var realm string
	r := serve(t, "127.0.0.2", withTokens(&realm, func(w http.ResponseWriter, q *http.Request) { c.answer(w, q, "") }))
	realm = other.URL
	client := clientFor(t, r, other)
	if _, _, err := readImage(t.Context(), client, r.host+"/xx:1", Login{}); err != nil {
		t.Errorf("an anonymous token from another host: got %v", err)
	}
	for _, login := range []Login{{Username: "u", Password: "p"}, {IdentityToken: "refresh"}} {
		_, _, err := readImage(t.Context(), client, r.host+"/xx:1", login)
		if !errors.Is(err, &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonImageDenied}) {
			t.Errorf("a registry that asks for credentials at another host: got %v, want image_denied", err)
		}
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	for _, q := range other.asked {
		if q.Header.Get("Authorization") != "" || q.Method == http.MethodPost {
			t.Errorf("the other host got credentials in the request %s with header %v", q.Method, q.Header)
		}
	}
	for registry, hosts := range map[string]map[string]bool{
		"registry.gitlab.com": {"registry.gitlab.com": true, "gitlab.com": true, "com": false, "evil.com": false,
			"lab.com": false, "a.registry.gitlab.com": false},
		"reg.test:5000": {"reg.test": true, "REG.test": true, "test": false},
	} {
		for host, want := range hosts {
			if got := mayGetCredentials(registry, host); got != want {
				t.Errorf("%s may get the credentials for %s: %t, want %t", host, registry, got, want)
			}
		}
	}
}

func TestErrorsContainNoTextOfARemoteServer(t *testing.T) {
	t.Parallel()
	c := newContent()
	for status, want := range map[int]*protocol.Error{
		200: {Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed}, 302: {Code: protocol.Unavailable},
		400: {Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed},
		401: {Code: protocol.PermissionDenied, Reason: protocol.ReasonImageDenied},
		403: {Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound},
		404: {Code: protocol.NotFound, Reason: protocol.ReasonImageNotFound},
		429: {Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed},
		503: {Code: protocol.Unavailable, Reason: protocol.ReasonRegistryUnreachable},
	} {
		structured := strings.ReplaceAll(`{"errors": [{"code": "S", "message": "S", "detail": "S"}]}`, `"S"`, `"`+secret+`"`)
		for _, body := range []string{secret, structured, strings.Repeat(secret, maxResponse/len(secret)+2)} {
			r := serve(t, "127.0.0.2", func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/v2/" {
					return
				}
				w.Header().Set("Location", "https://"+secret+".invalid/"+secret)
				w.Header().Set("Docker-Content-Digest", secret)
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body) // fails if the client does not read the complete body
			})
			_, _, err := readImage(t.Context(), clientFor(t, r), r.host+"/xx:1", Login{})
			e := protocol.AsError(err)
			if err == nil || strings.Contains(err.Error(), secret) || len(err.Error()) > 300 {
				t.Errorf("status %d: the error contains text of the server, or is too long: %.500v", status, err)
			}
			if len(body) < 1000 && (e == nil || e.Code != want.Code || want.Reason != "" && e.Reason != want.Reason) {
				t.Errorf("status %d: got %v, want %v", status, err, want)
			}
		}
	}
	r := serve(t, "127.0.0.2", func(w http.ResponseWriter, q *http.Request) { c.answer(w, q, "") })
	if _, _, err := readImage(t.Context(), clientFor(t, r), r.host+"/xx:other",
		Login{}); protocol.CodeOf(err) != protocol.NotFound || strings.Contains(err.Error(), secret) {
		t.Errorf("a missing tag: got %v", err)
	}
	for digest, data := range c.blobs {
		if bytes.HasPrefix(data, []byte("a layer of amd64")) {
			c.blobs[digest] = []byte("a layer of nobody")
		}
	}
	if _, _, err := readImage(t.Context(), clientFor(t, r), r.host+"/xx:1", Login{}); !errors.Is(err,
		&protocol.Error{Code: protocol.Unavailable, Reason: protocol.ReasonImagePullFailed}) {
		t.Errorf("a layer with a wrong digest: got %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := readImage(ended, clientFor(t, r), r.host+"/xx:1",
		Login{}); protocol.CodeOf(err) != protocol.Cancelled {
		t.Errorf("after the caller cancelled: got %v", err)
	}
}
