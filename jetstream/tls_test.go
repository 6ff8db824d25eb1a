package jetstream_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/certs"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// secured is a server with TLS, and the files of its authority.
type secured struct {
	*embedded.Server
	dir    string
	ca     *certs.CA
	mutual bool
}

// startSecured runs a server whose certificate has the hosts and the life. If mutual is set, clients need a
// certificate.
func startSecured(t testing.TB, mutual bool, life time.Duration, hosts ...string) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir(), mutual: mutual}
	var err error
	s.ca, err = certs.NewCA(s.dir, "ca")
	must(t, err)
	s.Server, err = embedded.Start(embedded.Config{Dir: t.TempDir(), TLS: s.config(t, life, hosts...)})
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	return s
}

// config returns a configuration with a new certificate of the server.
func (s *secured) config(t testing.TB, life time.Duration, hosts ...string) *tls.Config {
	t.Helper()
	cert, key, err := s.ca.Issue(s.dir, "server", life, hosts...)
	must(t, err)
	var clients []*certs.CA
	if s.mutual {
		clients = append(clients, s.ca)
	}
	c, err := certs.Server(cert, key, clients...)
	must(t, err)
	return c
}

// url returns the server's URL with the scheme nats, which does not ask for TLS.
func (s *secured) url() string { return strings.Replace(s.ClientURL(), "tls://", "nats://", 1) }

// client issues a certificate of a client.
func (s *secured) client(t testing.TB, ca *certs.CA, life time.Duration) jetstream.TLS {
	t.Helper()
	cert, key, err := ca.Issue(t.TempDir(), "client", life)
	must(t, err)
	return jetstream.TLS{CA: s.ca.File, Cert: cert, Key: key}
}

func TestAConnectionUsesTLS(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mutual     bool
		hosts      []string // in the server's certificate; none: those of this machine
		serverName string
	}{
		"server": {}, "mutual": {mutual: true},
		"server_name": {hosts: []string{"nats.example"}, serverName: "nats.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSecured(t, c.mutual, time.Hour, c.hosts...)
			cfg := jetstream.Config{URL: s.url(), TLS: jetstream.TLS{CA: s.ca.File}, Logger: quiet}
			if c.mutual {
				cfg.TLS = s.client(t, s.ca, time.Hour)
			}
			cfg.TLS.ServerName = c.serverName
			c, err := jetstream.Connect(t.Context(), cfg)
			must(t, err)
			defer c.Close()
			must(t, c.Provision(t.Context(), jetstream.Assets{}))
		})
	}
}

func TestAFailureOfTLSIsExplainedAtOnce(t *testing.T) {
	t.Parallel()
	good, mutual := startSecured(t, false, time.Hour), startSecured(t, true, time.Hour)
	expired, named := startSecured(t, false, -time.Hour), startSecured(t, false, time.Hour, "nats.example")
	other, err := certs.NewCA(t.TempDir(), "other")
	must(t, err)
	plain, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(plain.Stop)
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		url    string
		tls    jetstream.TLS
		code   protocol.Code
		reason string
		field  string
		want   string // part of the message
	}{
		"a CA that the machine does not know": {good.url(), jetstream.TLS{}, protocol.FailedPrecondition,
			"server_certificate", "tls.ca", "name a file with the certificate of the server's CA"},
		"a CA that the file does not have": {good.url(), jetstream.TLS{CA: other.File}, protocol.FailedPrecondition,
			"server_certificate", "tls.ca", "no certificate in " + other.File},
		"an expired server": {expired.url(), jetstream.TLS{CA: expired.ca.File}, protocol.FailedPrecondition,
			"server_certificate", "", "certificate has expired"},
		"another name": {named.url(), jetstream.TLS{CA: named.ca.File}, protocol.FailedPrecondition, "server_certificate",
			"tls.server_name", "127.0.0.1"},
		"another server_name": {good.url(), jetstream.TLS{CA: good.ca.File, ServerName: "nats.example"},
			protocol.FailedPrecondition, "server_certificate", "tls.server_name", "not nats.example"},
		"no client certificate": {mutual.url(), jetstream.TLS{CA: mutual.ca.File}, protocol.PermissionDenied,
			"client_certificate", "tls.cert", "certificate required"},
		"a client certificate of another CA": {mutual.url(), mutual.client(t, other, time.Hour),
			protocol.PermissionDenied, "client_certificate", "tls.cert", "was issued by CN=other"},
		"an expired client certificate": {mutual.url(), mutual.client(t, mutual.ca, -time.Hour), protocol.PermissionDenied,
			"client_certificate", "tls.cert", "expired on "},
		"a server without TLS": {plain.ClientURL(), jetstream.TLS{CA: other.File}, protocol.FailedPrecondition,
			"server_settings", "", "offers no TLS, but the setting tls requires TLS"},
		"a URL that requires TLS": {strings.Replace(plain.ClientURL(), "nats:", "tls:", 1), jetstream.TLS{},
			protocol.FailedPrecondition, "server_settings", "", "offers no TLS, but its URL requires TLS"},
		"no key": {good.url(), jetstream.TLS{Cert: good.ca.File}, protocol.InvalidArgument, "", "tls.key", "is missing"},
		"no certificate": {good.url(), jetstream.TLS{Key: good.ca.File}, protocol.InvalidArgument, "", "tls.cert",
			"is missing"},
		"no file": {good.url(), jetstream.TLS{CA: missing}, protocol.InvalidArgument, "", "tls.ca", "no such file"},
		"no cert file": {good.url(), jetstream.TLS{Cert: missing, Key: missing}, protocol.InvalidArgument, "", "tls.cert",
			""},
		"not PEM": {good.url(), jetstream.TLS{CA: filepath.Join(good.dir, "server.key")}, protocol.InvalidArgument, "",
			"tls.ca", "no certificate"},
		"a key of another certificate": {good.url(), jetstream.TLS{Cert: filepath.Join(good.dir, "server.pem"),
			Key: filepath.Join(mutual.dir, "server.key")}, protocol.InvalidArgument, "", "tls.cert", "does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			began := time.Now()
			_, err := jetstream.Connect(ctx, jetstream.Config{URL: c.url, TLS: c.tls, Wait: true, Logger: quiet})
			e := protocol.AsError(err)
			if e == nil || e.Code != c.code || e.Reason != c.reason || e.Field != c.field ||
				!strings.Contains(e.Message, c.want) {
				t.Errorf("got %v, want code %s, reason %s, field %s and %q", err, c.code, c.reason, c.field, c.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the error came after %s", took)
			}
		})
	}
}

// TestTheFailureOfOneServerIsNotHiddenByAnotherThatIsDown connects once. The client tries the servers in random order.
func TestTheFailureOfOneServerIsNotHiddenByAnotherThatIsDown(t *testing.T) {
	t.Parallel()
	s := startSecured(t, false, -time.Hour)
	for range 10 {
		_, err := jetstream.Connect(t.Context(), jetstream.Config{URL: "nats://127.0.0.1:1," + s.url(), Logger: quiet,
			TLS: jetstream.TLS{CA: s.ca.File}})
		wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerCertificate)
	}
}

// TestAServerGetsNoCredentialsWithoutTLSIfAnotherURLRequiresTLS connects once, to a server without TLS, and to another
// one that is down.
func TestAServerGetsNoCredentialsWithoutTLSIfAnotherURLRequiresTLS(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	for _, scheme := range []string{"tls", "TLS"} {
		_, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.url() + "," + scheme + "://127.0.0.1:1",
			Logger:  quiet,
			Login:   func() (jetstream.Login, error) { return jetstream.Login{User: "ann", Password: "secret"}, nil },
			Options: func(o *nats.Options) { o.NoRandomize = true }})
		wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerSettings)
	}
}

// TestASingleAttemptLearnsThatAServerDemandsACertificate connects without a deadline, as commands do.
func TestASingleAttemptLearnsThatAServerDemandsACertificate(t *testing.T) {
	t.Parallel()
	s := startSecured(t, true, time.Hour)
	for range 50 {
		_, err := jetstream.Connect(context.Background(), jetstream.Config{URL: s.url(), Logger: quiet,
			TLS: jetstream.TLS{CA: s.ca.File}})
		wantError(t, err, protocol.PermissionDenied, protocol.ReasonClientCertificate)
	}
}

func TestAWebsocketUsesTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := certs.NewCA(dir, "ca")
	must(t, err)
	var present atomic.Pointer[tls.Certificate] // the server's certificate for new connections
	renew := func(life time.Duration) {
		cert, key, err := ca.Issue(dir, "server", life)
		must(t, err)
		pair, err := tls.LoadX509KeyPair(cert, key)
		must(t, err)
		present.Store(&pair)
	}
	renew(time.Hour)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir(), Websocket: server.WebsocketOpts{Host: "127.0.0.1", Port: server.RANDOM_PORT,
			TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12,
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return present.Load(), nil }}}})
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready after 10 s")
	}
	url := s.WebsocketURL()
	_, err = jetstream.Connect(t.Context(), jetstream.Config{URL: url, Logger: quiet})
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerCertificate)
	for _, url := range []string{url, strings.Replace(url, "wss:", "ws:", 1)} {
		renew(time.Hour)
		c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: url, TLS: jetstream.TLS{CA: ca.File}, Logger: quiet})
		must(t, err)
		defer c.Close()
		renew(-time.Hour)
		must(t, c.Reconnect())
		awaitHealth(t, c, protocol.ReasonServerCertificate, "")
		renew(time.Hour)
		awaitHealth(t, c, "", "")
	}
}

// TestCertificatesAreReadAgainAtEachConnection moves a server and then its client to another authority, file by file.
func TestCertificatesAreReadAgainAtEachConnection(t *testing.T) {
	t.Parallel()
	s := startSecured(t, true, time.Hour)
	files, dir := s.client(t, s.ca, time.Hour), t.TempDir()
	files.CA = filepath.Join(dir, "ca.pem")
	copyFile(t, s.ca.File, files.CA)
	var log eventually.Buffer
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.url(), TLS: files,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	defer c.Close()

	next, err := certs.NewCA(t.TempDir(), "next")
	must(t, err)
	s.ca = next
	must(t, s.ReloadTLS(s.config(t, time.Hour)))
	must(t, c.Flush(t.Context())) // an open connection lasts
	must(t, c.Reconnect())
	awaitHealth(t, c, protocol.ReasonServerCertificate, "tls.ca")
	copyFile(t, next.File, files.CA)
	awaitHealth(t, c, protocol.ReasonClientCertificate, "tls.cert")
	_, _, err = next.Issue(filepath.Dir(files.Cert), "client", time.Hour)
	must(t, err)
	awaitHealth(t, c, "", "")
	must(t, c.Flush(t.Context()))
	if n := strings.Count(log.String(), "TLS with NATS fails"); n == 0 || n > 4 {
		t.Errorf("the log mentions the failure of TLS %d times:\n%s", n, log.String())
	}
}

// TestAClientMayStartWhileItsCertificateIsReplaced replaces the certificate some time before its key.
func TestAClientMayStartWhileItsCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	s := startSecured(t, true, time.Hour)
	files, next := s.client(t, s.ca, time.Hour), s.client(t, s.ca, time.Hour)
	copyFile(t, next.Cert, files.Cert)
	replaced := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() {
		defer close(replaced)
		copyFile(t, next.Key, files.Key)
	})
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.url(), TLS: files, Logger: quiet})
	<-replaced
	must(t, err)
	c.Close()
}

func TestAnExpiredCertificateOfAServerNeedsNoRestartOfItsClients(t *testing.T) {
	t.Parallel()
	s := startSecured(t, false, time.Hour)
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.url(), TLS: jetstream.TLS{CA: s.ca.File},
		Logger: quiet})
	must(t, err)
	defer c.Close()
	must(t, s.ReloadTLS(s.config(t, -time.Hour)))
	must(t, c.Flush(t.Context())) // an open connection lasts
	must(t, c.Reconnect())
	awaitHealth(t, c, protocol.ReasonServerCertificate, "")
	must(t, s.ReloadTLS(s.config(t, time.Hour)))
	awaitHealth(t, c, "", "")
	must(t, c.Flush(t.Context()))
}

// awaitHealth waits until the connection's health has this reason and field; both are empty for a connection that is
// up.
func awaitHealth(t testing.TB, c *jetstream.Conn, reason, field string) {
	t.Helper()
	eventually.Holds(t, 20*time.Second, fmt.Sprintf("health has the reason %q and the field %q", reason, field),
		func() bool {
			e := protocol.AsError(c.Health())
			if e == nil {
				return reason == ""
			}
			return reason != "" && e.Reason == reason && e.Field == field
		})
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to+".new", text, 0o600))
	must(t, os.Rename(to+".new", to))
}

// TestHandshakeFirstIsForServersThatHaveIt connects to servers with and without handshake_first.
func TestHandshakeFirstIsForServersThatHaveIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := certs.NewCA(dir, "ca")
	must(t, err)
	cert, key, err := ca.Issue(dir, "server", time.Hour)
	must(t, err)
	config, err := certs.Server(cert, key)
	must(t, err)
	for _, first := range []bool{false, true} {
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), TLSConfig: config, TLSHandshakeFirst: first, TLSTimeout: 5})
		must(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server is not ready after 10 s")
		}
		connect := func(clientFirst bool) error {
			c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.ClientURL(), Logger: quiet,
				TLS: jetstream.TLS{CA: ca.File, HandshakeFirst: clientFirst}})
			if err == nil {
				c.Close()
			}
			return err
		}
		must(t, connect(first))
		e := protocol.AsError(connect(!first))
		if first && (e == nil || e.Code != protocol.Unavailable || !strings.Contains(e.Message, "set tls.handshake_first")) {
			t.Errorf("a client that waits for a server with handshake_first got %v", e)
		}
		if !first && (e == nil || e.Code != protocol.FailedPrecondition || e.Field != "tls.handshake_first" ||
			!strings.Contains(e.Message, "set handshake_first: true")) {
			t.Errorf("a client with tls.handshake_first got %v from a server without", e)
		}
	}
}
