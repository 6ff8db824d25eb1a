package jetstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// TLS says how a connection checks the servers, and how it identifies itself to them. If any field is set, the
// connection uses TLS with every server, whatever the URLs say. The zero value uses TLS only if a URL or a server
// requires it, and then trusts the CAs of the machine. The files are read again at each attempt to connect; open
// connections keep using the content that they have read.
type TLS struct {
	CA         string // path of a PEM file with the certificates of the CAs to trust; default: the CAs of the machine
	Cert       string // path of a PEM file with the client's certificate, for servers that ask for one; needs Key
	Key        string // path of a PEM file with the private key of Cert
	ServerName string // name that the certificate of each server must have; default: the host in the server's URL

	// HandshakeFirst begins each connection with the TLS handshake, for servers with handshake_first: true. Every server
	// must be configured so: with another server, a connection fails with server_settings.
	HandshakeFirst bool
}

// check refuses settings with which no connection can ever be made. Error: invalid_argument with the field.
func (t TLS) check() error {
	switch {
	case t.Cert != "" && t.Key == "":
		return protocol.Invalid("tls.key", "is missing: %s is of no use without its private key", t.Cert)
	case t.Key != "" && t.Cert == "":
		return protocol.Invalid("tls.cert", "is missing: %s is the key of a certificate", t.Key)
	}
	if t.CA != "" {
		if _, err := t.roots(); err != nil {
			return err
		}
	}
	if t.Cert != "" {
		if _, err := t.certificate(); err != nil {
			return err
		}
	}
	return nil
}

// apply is an option of the client.
func (t TLS) apply(o *nats.Options) error {
	if t == (TLS{}) {
		return nil
	}
	o.Secure, o.TLSHandshakeFirst = true, t.HandshakeFirst
	o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		o.RootCAsCB = t.roots
	}
	if t.Cert != "" {
		o.TLSCertCB = t.certificate
	}
	return nil
}

// roots reads the CAs to trust.
func (t TLS) roots() (*x509.CertPool, error) {
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, unreadable("tls.ca", t.CA, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, protocol.Invalid("tls.ca", "%s contains no certificate in PEM", t.CA)
	}
	return pool, nil
}

// replacing is how long the replacement of a certificate and its key may take, file by file.
const replacing = 200 * time.Millisecond

// certificate reads the client's certificate and its key. If the key does not belong to the certificate, an operator
// may be replacing the files, so certificate reads both again.
func (t TLS) certificate() (tls.Certificate, error) {
	pair, err := t.pair()
	if err != nil {
		time.Sleep(replacing)
		pair, err = t.pair()
	}
	return pair, err
}

// pair reads the client's certificate and its key once.
func (t TLS) pair() (tls.Certificate, error) {
	cert, err := os.ReadFile(t.Cert)
	if err != nil {
		return tls.Certificate{}, unreadable("tls.cert", t.Cert, err)
	}
	key, err := os.ReadFile(t.Key)
	if err != nil {
		return tls.Certificate{}, unreadable("tls.key", t.Key, err)
	}
	defer clear(key)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, protocol.Invalid("tls.cert", "%s and the key %s cannot be used: %v", t.Cert, t.Key, err)
	}
	return pair, nil
}

// refusedCertificate contains the alerts by which a server refuses the certificate of a client, or a client without
// one.
var refusedCertificate = []string{"certificate required", "bad certificate", "unsupported certificate",
	"revoked certificate", "expired certificate", "unknown certificate", "unknown certificate authority", "access denied"}

// explain returns why TLS with a server failed, or nil if TLS is not the cause of err. If the code is unavailable, the
// cause is uncertain, and another attempt may show the cause.
func (t TLS) explain(err error) *protocol.Error {
	var (
		typed  *protocol.Error
		failed *tls.CertificateVerificationError
		op     *net.OpError
		record tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &typed):
		if strings.HasPrefix(typed.Field, "tls.") {
			return typed
		}
	case errors.As(err, &failed):
		return t.distrusts(failed)
	case errors.As(err, &op) && op.Op == "remote error":
		return t.refused(op)
	case op != nil && op.Op == "read" && op.Timeout() && !t.HandshakeFirst:
		return protocol.Errorf(protocol.Unavailable, "",
			"the server accepts the connection, but sends nothing: if it has handshake_first: true, set tls.handshake_first")
	case errors.As(err, &record) && t.HandshakeFirst:
		e := settings("the server does not begin with TLS: set handshake_first: true on it, or leave out tls.handshake_first")
		e.Field = "tls.handshake_first"
		return e
	case errors.Is(err, nats.ErrSecureConnWanted):
		return settings("the server offers no TLS, but %s requires TLS: configure TLS on the server", t.wanted())
	case errors.As(err, &record):
		return settings("the server's port does not speak TLS as NATS does: %v", err)
	case errors.Is(err, nats.ErrTLS) && isClosed(err):
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonClientCertificate,
			"the server closed the connection in or after the TLS handshake, without saying why: %s", t.ownCertificate())
	}
	return nil
}

// wanted names the setting or the URL that requires TLS.
func (t TLS) wanted() string {
	if t == (TLS{}) {
		return "its URL"
	}
	return "the setting tls"
}

// isClosed reports whether the other side closed the connection.
func isClosed(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, syscall.EPIPE, syscall.ECONNRESET},
		func(closed error) bool { return errors.Is(err, closed) })
}

// distrusts says why the connection does not trust the certificate of a server.
func (t TLS) distrusts(failed *tls.CertificateVerificationError) *protocol.Error {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	field, do := "", "replace the certificate of the server"
	switch {
	case errors.As(failed.Err, &unknown):
		field, do = "tls.ca", "name a file with the certificate of the server's CA"
		if t.CA != "" {
			do = "no certificate in " + t.CA + " is of the server's CA"
		}
	case errors.As(failed.Err, &name):
		field, do = "tls.server_name", "use a URL with a name that the certificate has, or set tls.server_name to such a name"
	case errors.As(failed.Err, &invalid) && invalid.Reason == x509.Expired:
		do += ", or correct the clock of this machine"
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerCertificate,
		"the certificate of the server is not valid: %v: %s", failed.Err, do)
	e.Field = field
	return e
}

// refused says why the server ended the handshake.
func (t TLS) refused(alert *net.OpError) *protocol.Error {
	said := strings.TrimPrefix(alert.Err.Error(), "tls: ")
	if !slices.Contains(refusedCertificate, said) {
		return settings("the server refuses TLS with this client: %s", said)
	}
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonClientCertificate,
		"the server refuses the certificate of this client (%s): %s", said, t.ownCertificate())
	e.Field = "tls.cert"
	return e
}

// ownCertificate says what the client knows about its own certificate.
func (t TLS) ownCertificate() string {
	if t.Cert == "" {
		return "if it demands a certificate of clients, name one in tls.cert, and its key in tls.key"
	}
	pair, err := t.certificate()
	if err != nil {
		return protocol.AsError(err).Error()
	}
	switch now := time.Now(); {
	case now.After(pair.Leaf.NotAfter):
		return fmt.Sprintf("%s expired on %s", t.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	case now.Before(pair.Leaf.NotBefore):
		return fmt.Sprintf("%s is not valid before %s", t.Cert, pair.Leaf.NotBefore.Format(time.RFC3339))
	}
	return fmt.Sprintf("%s was issued by %s: name a certificate that the server accepts", t.Cert, pair.Leaf.Issuer)
}
