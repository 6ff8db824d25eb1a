package jetstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Certificate describes a certificate of a server or of this client.
type Certificate struct {
	Of      string // host and port of the server, as in its URL, or the path of the client's file
	Names   []string
	From    time.Time
	Until   time.Time
	Misname string // name that the certificate should have but lacks; empty: it has the name
}

const (
	showsWithin = 3 * time.Second // time in which a server shows its certificate
	infoLength  = 64 << 10        // longest first line of a server, in bytes
)

// Certificates returns the certificates of the servers that a list of URLs names. It makes a connection of its own to
// each server, and does not log in. Servers without TLS and servers that do not answer within 3 s are left out.
func (t TLS) Certificates(ctx context.Context, urls string) (found []Certificate) {
	ctx, cancel := context.WithTimeout(ctx, showsWithin)
	defer cancel()
	list := splitURLs(urls)
	shown := make([]*Certificate, len(list))
	var all sync.WaitGroup
	for i, text := range list {
		all.Go(func() { shown[i] = t.shownBy(ctx, text) })
	}
	all.Wait()
	for _, c := range shown {
		if c != nil {
			found = append(found, *c)
		}
	}
	return found
}

// Own returns the certificate that this client shows to servers, or nil if it has none that can be read.
func (t TLS) Own() *Certificate {
	if t.Cert == "" {
		return nil
	}
	pair, err := t.certificate()
	if err != nil { // the attempt to connect reports the error
		return nil
	}
	c := certificateOf(t.Cert, pair.Leaf)
	return &c
}

// shownBy returns the certificate of one server, or nil if it shows none.
func (t TLS) shownBy(ctx context.Context, text string) *Certificate {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	address := u.Host
	if u.Port() == "" {
		port, usual := "4222", map[string]string{"ws": "80", "wss": "443"}
		if p := usual[u.Scheme]; p != "" {
			port = p
		}
		address = net.JoinHostPort(u.Hostname(), port)
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	defer raw.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline) // fails only if the connection is closed, and then the next call fails
	}
	if u.Scheme == "ws" || u.Scheme != "wss" && !t.HandshakeFirst && !offersTLS(raw) {
		return nil
	}
	name := u.Hostname()
	if t.ServerName != "" {
		name = t.ServerName
	}
	leaf := t.shake(ctx, raw, name)
	if leaf == nil {
		return nil
	}
	c := certificateOf(address, leaf)
	if leaf.VerifyHostname(name) != nil {
		c.Misname = name
	}
	return &c
}

// offersTLS reads the first line of a server, which says whether the server wants or offers TLS.
func offersTLS(conn net.Conn) bool {
	line, err := bufio.NewReaderSize(conn, infoLength).ReadSlice('\n')
	text, isInfo := strings.CutPrefix(string(line), "INFO ")
	var info struct {
		Required  bool `json:"tls_required"`
		Available bool `json:"tls_available"`
	}
	return err == nil && isInfo && json.Unmarshal([]byte(text), &info) == nil && (info.Required || info.Available)
}

// shake returns the server's certificate, or nil. It accepts every certificate, because the caller examines it, and
// sends nothing over the connection.
func (t TLS) shake(ctx context.Context, raw net.Conn, name string) (leaf *x509.Certificate) {
	shown := func(certificates [][]byte, _ [][]*x509.Certificate) (err error) {
		if len(certificates) > 0 {
			leaf, err = x509.ParseCertificate(certificates[0])
		}
		return err
	}
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name,
		InsecureSkipVerify: true, VerifyPeerCertificate: shown}) //nolint:gosec // see above
	_ = conn.HandshakeContext(ctx) // the server may refuse this client after it has shown its certificate
	return leaf
}

func certificateOf(of string, c *x509.Certificate) Certificate {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return Certificate{Of: of, Names: names, From: c.NotBefore, Until: c.NotAfter}
}
