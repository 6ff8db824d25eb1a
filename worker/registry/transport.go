package registry

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
)

// The reasons why the transport refuses a request or a response. The method [Image.failed] translates these errors.
var (
	errNotPublic   = errors.New("the address is not public")
	errNotHTTPS    = errors.New("the request does not use TLS")
	errCredentials = errors.New("the request would send the registry's credentials to another host")
	errTooLong     = errors.New("the response is too long")
)

// maxResponse is the maximum size of a response other than a layer, in bytes.
const maxResponse = 8 << 20

// newTransport returns a transport that connects only to allowed addresses. It checks the address at the moment it
// connects, so the check also covers a name that has changed its address since an earlier lookup. It uses no proxy,
// because a proxy would resolve names itself.
func newTransport(allowed func(netip.AddrPort) bool) *http.Transport {
	dialer := &net.Dialer{Timeout: 20 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		if a, err := netip.ParseAddrPort(address); err != nil || !allowed(a) {
			return errNotPublic
		}
		return nil
	}}
	return &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 20 * time.Second,
		ResponseHeaderTimeout: time.Minute, MaxResponseHeaderBytes: 256 << 10, IdleConnTimeout: 30 * time.Second,
		MaxIdleConnsPerHost: 4,
	}
}

// public returns a function that reports whether an address is on the public internet, in no denied range, and not an
// address of this machine.
func public(denied []netip.Prefix) func(netip.AddrPort) bool {
	return func(to netip.AddrPort) bool {
		a := to.Addr().Unmap()
		if !imageref.IsPublic(a) {
			return false
		}
		for _, d := range denied {
			if d.Contains(a) {
				return false
			}
		}
		own, err := net.InterfaceAddrs()
		if err != nil {
			return false
		}
		for _, o := range own {
			if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap() == a {
				return false
			}
		}
		return true
	}
}

// guard allows only requests with TLS, limits which hosts get a registry's credentials, and limits the length of
// responses.
type guard struct {
	next     http.RoundTripper
	registry string // host or host:port
}

// RoundTrip implements [http.RoundTripper].
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errNotHTTPS
	}
	// A request for a token carries a password in a header, or a refresh token in a form.
	if (r.Header.Get("Authorization") != "" || r.Method == http.MethodPost) &&
		!mayGetCredentials(g.registry, r.URL.Hostname()) {
		return nil, errCredentials
	}
	response, err := g.next.RoundTrip(r)
	if err == nil && (response.StatusCode >= 300 || !isBlob(r)) {
		response.Body = &bounded{response.Body, maxResponse}
	}
	return response, err
}

// mayGetCredentials reports whether a host may get the credentials for a registry. The host must be the registry's own
// host, or a parent domain of that host: gitlab.com may get the credentials for registry.gitlab.com.
func mayGetCredentials(registry, host string) bool {
	if name, _, err := net.SplitHostPort(registry); err == nil {
		registry = name
	}
	registry, host = strings.ToLower(registry), strings.ToLower(host)
	return host == registry || strings.Contains(host, ".") && strings.HasSuffix(registry, "."+host)
}

// isBlob reports whether a request asks for a blob, or follows a redirect of such a request.
func isBlob(r *http.Request) bool {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return strings.HasPrefix(r.URL.Path, "/v2/") && strings.Contains(r.URL.Path, "/blobs/")
}

// bounded is a response body. Reading it fails after a maximum length.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}
