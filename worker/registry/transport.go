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

// What the transport refuses.
var (
	errNotPublic   = errors.New("an address that is not public")
	errNotHTTPS    = errors.New("a request without TLS")
	errCredentials = errors.New("the credentials are asked for by another host")
	errTooLong     = errors.New("an answer is too long")
)

// maxAnswer bounds what is read of an answer that is no layer, in bytes.
const maxAnswer = 8 << 20

// newTransport makes a transport that connects only to addresses that are public, as they are when the
// connection is made: what a name led to before does not count. A proxy would resolve names by itself,
// so none is used.
func newTransport(allowed func(netip.AddrPort) bool) *http.Transport {
	dialer := &net.Dialer{Timeout: 20 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		if a, err := netip.ParseAddrPort(address); err != nil || !allowed(a) {
			return errNotPublic
		}
		return nil
	}}
	return &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 20 * time.Second,
		ResponseHeaderTimeout: time.Minute, MaxResponseHeaderBytes: 256 << 10, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 4,
	}
}

// public says whether an address is one of the internet, and neither denied nor the machine's own.
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

// guard bounds what is sent to a registry, and to whom it sends on, and what is read of them.
type guard struct {
	next     http.RoundTripper
	registry string // host or host:port
}

// RoundTrip implements [http.RoundTripper].
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errNotHTTPS
	}
	// A token is asked for with a password in a header, or with a refresh token in a form.
	if (r.Header.Get("Authorization") != "" || r.Method == http.MethodPost) && !mayHear(g.registry, r.URL.Hostname()) {
		return nil, errCredentials
	}
	answer, err := g.next.RoundTrip(r)
	if err == nil && (answer.StatusCode >= 300 || !isBlob(r)) {
		answer.Body = &bounded{answer.Body, maxAnswer}
	}
	return answer, err
}

// mayHear says whether a host may hear the credentials for a registry: it is the registry's own, or that
// of a domain which the registry is in, as gitlab.com is for registry.gitlab.com.
func mayHear(registry, host string) bool {
	if name, _, err := net.SplitHostPort(registry); err == nil {
		registry = name
	}
	registry, host = strings.ToLower(registry), strings.ToLower(host)
	return host == registry || strings.Contains(host, ".") && strings.HasSuffix(registry, "."+host)
}

// isBlob says whether a request is for a blob, also where it was sent on.
func isBlob(r *http.Request) bool {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return strings.HasPrefix(r.URL.Path, "/v2/") && strings.Contains(r.URL.Path, "/blobs/")
}

// bounded fails a body that is longer than it may be.
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
