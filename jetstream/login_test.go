package jetstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// issuer is an account on a running server. It issues credentials files for the account's users.
type issuer struct {
	account nkeys.KeyPair
	server  *server.Server
}

// startIssuer runs a server that accepts users of a single account only.
func startIssuer(t testing.TB) *issuer {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	must(t, err)
	operatorID, err := operator.PublicKey()
	must(t, err)
	operatorJWT, err := jwt.NewOperatorClaims(operatorID).Encode(operator)
	must(t, err)
	trusted, err := jwt.DecodeOperatorClaims(operatorJWT)
	must(t, err)
	resolver := &server.MemAccResolver{}
	newAccount := func(limits jwt.JetStreamLimits) (key nkeys.KeyPair, id string) {
		key, err := nkeys.CreateAccount()
		must(t, err)
		id, err = key.PublicKey()
		must(t, err)
		account := jwt.NewAccountClaims(id)
		account.Limits.JetStreamLimits = limits
		claims, err := account.Encode(operator)
		must(t, err)
		must(t, resolver.Store(id, claims))
		return key, id
	}
	account, _ := newAccount(jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit})
	_, system := newAccount(jwt.JetStreamLimits{}) // without a system account, a server has no JetStream
	s, err := server.NewServer(
		&server.Options{
			Host:             "127.0.0.1",
			Port:             server.RANDOM_PORT,
			NoSigs:           true,
			NoLog:            true,
			JetStream:        true,
			StoreDir:         t.TempDir(),
			TrustedOperators: []*jwt.OperatorClaims{trusted},
			AccountResolver:  resolver,
			SystemAccount:    system,
		},
	)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready after 10 s")
	}
	return &issuer{account, s}
}

// issue writes a user's credentials file atomically.
func (i *issuer) issue(t testing.TB, file string, life time.Duration) {
	t.Helper()
	user, err := nkeys.CreateUser()
	must(t, err)
	id, err := user.PublicKey()
	must(t, err)
	seed, err := user.Seed()
	must(t, err)
	claims := jwt.NewUserClaims(id)
	claims.Expires = time.Now().Add(life).Unix()
	token, err := claims.Encode(i.account)
	must(t, err)
	text, err := jwt.FormatUserConfig(token, seed)
	must(t, err)
	must(t, os.WriteFile(file+".new", text, 0o600))
	must(t, os.Rename(file+".new", file))
}

// lines is a log that a test reads.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestAConnectionOutlivesItsCredentials(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	file := filepath.Join(t.TempDir(), "k.creds")
	i.issue(t, file, 2*time.Second)
	var log lines
	c, err := jetstream.Connect(
		t.Context(),
		jetstream.Config{URL: i.server.ClientURL(), Creds: file, LoginFrom: "creds " + file,
			Logger: slog.New(slog.NewTextHandler(&log, nil))},
	)
	must(t, err)
	defer c.Close()
	must(t, c.Health())
	eventually.Holds(t, 10*time.Second, "the credentials have expired", func() bool {
		return protocol.CodeOf(c.Health()) == protocol.PermissionDenied
	})
	must(t, os.Remove(file)) // the file may be missing for a while during a rotation
	eventually.Holds(t, 10*time.Second, "the credentials cannot be read", func() bool {
		return strings.Contains(fmt.Sprint(c.Health()), "no such file")
	})
	i.issue(t, file, time.Hour)
	eventually.Holds(t, 10*time.Second, "the new credentials are accepted", func() bool { return c.Health() == nil })
	must(t, c.Flush(context.WithoutCancel(t.Context())))
	if n := strings.Count(log.String(), "NATS refuses this process"); n != 1 || !strings.Contains(log.String(), file) {
		t.Errorf("the refusal was logged %d times, want once, with the file's name:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "\n"); n > 6 {
		t.Errorf("%d lines were logged, want at most 6:\n%s", n, log.String())
	}
}

// Somebody who has replaced a credentials file sees at once that the process has the new one.
func TestTheLifeOfCredentialsIsThatOfTheFileNow(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	file := filepath.Join(t.TempDir(), "k.creds")
	i.issue(t, file, time.Hour)
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: i.server.ClientURL(), Creds: file})
	must(t, err)
	defer c.Close()
	for _, life := range []time.Duration{time.Hour, 5 * time.Hour} {
		i.issue(t, file, life)
		issued, expires := c.CredentialsLife()
		if off := time.Until(expires) - life; off.Abs() > time.Minute || time.Since(issued) > time.Minute {
			t.Errorf("credentials of %s: issued %s, expire %s", life, issued, expires)
		}
	}
	must(t, os.Remove(file))
	if _, expires := c.CredentialsLife(); !expires.IsZero() {
		t.Errorf("without a file, the credentials expire at %s", expires)
	}
}

func TestALoginIsSeparatedFromURLs(t *testing.T) {
	t.Parallel()
	for urls, want := range map[string]struct {
		without string
		login   jetstream.Login
		same    bool
	}{
		"nats://n1:4222":                   {"nats://n1:4222", jetstream.Login{}, true},
		"n1:4222, n2":                      {"n1:4222, n2", jetstream.Login{}, true},
		"nats://u:p%40@n1,tls://u:p%40@n2": {"nats://n1,tls://n2", jetstream.Login{User: "u", Password: "p@"}, true},
		"secret@n1:4222":                   {"nats://n1:4222", jetstream.Login{Token: "secret"}, true},
		"nats://u:p@n1,nats://u:q@n2":      {"nats://u:p@n1,nats://u:q@n2", jetstream.Login{}, false},
	} {
		without, login, same := jetstream.SplitLogin(urls)
		if without != want.without || login != want.login || same != want.same {
			t.Errorf("SplitLogin(%q) = %q, %+v, %v", urls, without, login, same)
		}
	}
}

func TestInvalidURLsAreRefusedWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", " , ", "nats://", "http://u:geheim@n1:4222", "nats://u:geheim@n1:port",
		"nats://u:geheim@n1:70000", "nats://u:geheim@:4222", "nats://u:geheim@n1:4222,nats://%zz",
	} {
		_, err := jetstream.Connect(t.Context(), jetstream.Config{URL: url, Wait: true})
		wantError(t, err, protocol.InvalidArgument, "")
		if strings.Contains(err.Error(), "geheim") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}
