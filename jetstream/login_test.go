package jetstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// issuer is an account on a running server. It issues credentials files for the account's users.
type issuer struct {
	operator, account nkeys.KeyPair
	claims            *jwt.AccountClaims
	server            *server.Server
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
	newAccount := func(limits jwt.JetStreamLimits) (key nkeys.KeyPair, account *jwt.AccountClaims) {
		key, err := nkeys.CreateAccount()
		must(t, err)
		id, err := key.PublicKey()
		must(t, err)
		account = jwt.NewAccountClaims(id)
		account.Limits.JetStreamLimits = limits
		claims, err := account.Encode(operator)
		must(t, err)
		must(t, resolver.Store(id, claims))
		return key, account
	}
	account, claims := newAccount(jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit})
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
			SystemAccount:    system.Subject,
		},
	)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready after 10 s")
	}
	return &issuer{operator, account, claims, s}
}

// revoke makes the server refuse the credentials in a file.
func (i *issuer) revoke(t testing.TB, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	must(t, err)
	id, err := pair.PublicKey()
	must(t, err)
	i.claims.Revoke(id)
	_, err = i.claims.Encode(i.operator) // also fills the claims' own fields
	must(t, err)
	account, err := i.server.LookupAccount(i.claims.Subject)
	must(t, err)
	i.server.UpdateAccountClaims(account, i.claims)
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

func TestAConnectionOutlivesItsCredentials(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	file := filepath.Join(t.TempDir(), "k.creds")
	i.issue(t, file, 2*time.Second)
	var log eventually.Buffer
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

// TestARevokedConnectionContinuesAtOnceWithTheNewFile replaces the file first, as a rotation does.
func TestARevokedConnectionContinuesAtOnceWithTheNewFile(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	dir := t.TempDir()
	file, old := filepath.Join(dir, "k.creds"), filepath.Join(dir, "old.creds")
	i.issue(t, file, time.Hour)
	copyFile(t, file, old)
	states := make(chan time.Time, 10)
	var log eventually.Buffer
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: i.server.ClientURL(), Creds: file,
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		OnState: func(bool) { states <- time.Now() }})
	must(t, err)
	defer c.Close()
	i.issue(t, file, time.Hour)
	must(t, c.Flush(t.Context()))
	i.revoke(t, old)
	lost, back := <-states, <-states
	if took := back.Sub(lost); took > 5*time.Second {
		t.Errorf("the connection was away for %s", took)
	}
	must(t, c.Flush(t.Context()))
	if text := log.String(); strings.Contains(text, "level=ERROR") || !strings.Contains(text, "trying the new ones") {
		t.Errorf("the rotation was logged as\n%s", text)
	}

	i.revoke(t, file) // a revocation before the rotation
	eventually.Holds(t, 10*time.Second, "health says that the credentials were revoked", func() bool {
		e := protocol.AsError(c.Health())
		return e != nil && e.Code == protocol.PermissionDenied && e.Field == "creds" && strings.Contains(e.Message, "revoked")
	})
	i.issue(t, file, time.Hour)
	began := time.Now()
	eventually.Holds(t, 10*time.Second, "the new file is accepted", func() bool { return c.Health() == nil })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the new file was accepted after %s", took)
	}
}

func TestARefusalSaysWhatTheClientKnows(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	dir := t.TempDir()
	expired, revoked, foreign := filepath.Join(dir, "expired"), filepath.Join(dir, "revoked"),
		filepath.Join(dir, "foreign")
	i.issue(t, expired, -time.Hour)
	i.issue(t, revoked, time.Hour)
	i.revoke(t, revoked)
	startIssuer(t).issue(t, foreign, time.Hour)
	withToken, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Token: "right"})
	must(t, err)
	t.Cleanup(withToken.Stop)
	login := func(l jetstream.Login) func() (jetstream.Login, error) {
		return func() (jetstream.Login, error) { return l, nil }
	}
	const hidden = "were revoked or replaced, have expired by the server's clock, or are for other servers"
	for name, c := range map[string]struct {
		cfg         jetstream.Config
		field, want string
	}{
		"expired": {jetstream.Config{URL: i.server.ClientURL(), Creds: expired}, "creds",
			"the credentials in " + expired + " expired on "},
		"revoked":       {jetstream.Config{URL: i.server.ClientURL(), Creds: revoked}, "creds", hidden},
		"of another":    {jetstream.Config{URL: i.server.ClientURL(), Creds: foreign}, "creds", hidden},
		"none":          {jetstream.Config{URL: i.server.ClientURL()}, "creds", "name a file with credentials"},
		"a wrong token": {jetstream.Config{URL: withToken.ClientURL(), Token: "wrong"}, "token", "another token"},
		"a token in Login": {jetstream.Config{URL: withToken.ClientURL(), Login: login(jetstream.Login{Token: "wrong"})},
			"token", "another token"},
		"a wrong password": {jetstream.Config{URL: withToken.ClientURL(),
			Login: login(jetstream.Login{User: "anna", Password: "wrong"})}, "login",
			"the user anna does not exist, or has another password"},
		"a wrong URL": {jetstream.Config{URL: strings.Replace(withToken.ClientURL(), "nats://", "nats://wrong@", 1)}, "nats",
			"the login in the URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.Logger, c.cfg.Wait = quiet, true
			began := time.Now()
			_, err := jetstream.Connect(context.Background(), c.cfg)
			e := protocol.AsError(err)
			if e == nil || e.Code != protocol.PermissionDenied || e.Field != c.field || !strings.Contains(e.Message, c.want) {
				t.Errorf("got %v, want field %s and %q", err, c.field, c.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the error came after %s", took)
			}
		})
	}
}

func TestASecretThatEveryUserCanReadIsReported(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	file := filepath.Join(t.TempDir(), "k.creds")
	i.issue(t, file, time.Hour)
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		must(t, os.Chmod(file, mode))
		var log eventually.Buffer
		c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: i.server.ClientURL(), Creds: file,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
		must(t, err)
		c.Close()
		if got := strings.Contains(log.String(), "file="+file); got != warned {
			t.Errorf("mode %o: warned %v:\n%s", mode, got, log.String())
		}
	}
}

// CredentialsLife reads the file again, so the replacement of a file shows at once.
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

// The NATS client refuses two logins only when it connects, with an error that does not say where they come from.
func TestALoginInAURLExcludesOthers(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Token: "t1"})
	must(t, err)
	t.Cleanup(s.Stop)
	for _, login := range []jetstream.Login{{Token: "t1"}, {User: "ann", Password: "secret"}} {
		_, err := jetstream.Connect(t.Context(), jetstream.Config{Logger: quiet,
			URL:   strings.Replace(s.ClientURL(), "nats://", "nats://t1@", 1),
			Login: func() (jetstream.Login, error) { return login, nil }})
		if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != "nats" {
			t.Errorf("want invalid_argument of nats, got %v", err)
		}
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
