package jetstream

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Login identifies a connection: a user with a password, or a token. The zero value is anonymous.
type Login struct {
	User, Password string
	PasswordFile   string // path of a file with the password; ignored with Password
	Token          string
	TokenFile      string // path of a file with the token; ignored with Token
}

// read returns the login with the password or the token from its file. Error: invalid_argument with field login,
// password, password_file, token or token_file.
func (l Login) read() (_ Login, err error) {
	switch hasPassword := l.Password+l.PasswordFile != ""; {
	case l.User == "" && hasPassword:
		return Login{}, protocol.Invalid("login", "is missing: a password needs the name of its user")
	case l.User != "" && !hasPassword:
		return Login{}, protocol.Invalid("password", "is missing: the user %s needs password or password_file", l.User)
	case l.User != "" && l.Token+l.TokenFile != "":
		return Login{}, protocol.Invalid("token", "must not be set together with login: a connection has one login")
	}
	if l.Password == "" && l.PasswordFile != "" {
		if l.Password, err = readSecret("password_file", l.PasswordFile); err != nil {
			return Login{}, err
		}
	}
	if l.Token == "" && l.TokenFile != "" {
		if l.Token, err = readSecret("token_file", l.TokenFile); err != nil {
			return Login{}, err
		}
	}
	return Login{User: l.User, Password: l.Password, Token: l.Token}, nil
}

// readSecret reads a password or a token from a file.
func readSecret(field, file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", unreadable(field, file, err)
	}
	secret := strings.TrimSpace(string(content))
	if secret == "" {
		return "", protocol.Invalid(field, "%s is empty", file)
	}
	return secret, nil
}

// SplitLogin separates the login from a comma-separated list of NATS URLs, so that the login can be read again at each
// attempt to connect. If the URLs carry different logins, same is false and the URLs are returned unchanged.
func SplitLogin(urls string) (without string, login Login, same bool) {
	var found *url.Userinfo
	for i, text := range splitURLs(urls) {
		if !strings.Contains(text, "://") {
			text = "nats://" + text // the NATS client adds the scheme too
		}
		u, err := url.Parse(text)
		if err != nil {
			return urls, Login{}, false
		}
		if i > 0 && found.String() != u.User.String() {
			return urls, Login{}, false
		}
		found = u.User
		u.User = nil
		if i > 0 {
			without += ","
		}
		without += u.String()
	}
	if found == nil {
		return urls, Login{}, true
	}
	password, isUser := found.Password()
	if !isUser {
		return without, Login{Token: found.Username()}, true // NATS takes a user without a password as a token
	}
	return without, Login{User: found.Username(), Password: password}, true
}

// checkURLs refuses URLs with which no server can ever be reached.
func checkURLs(urls string) error {
	list := splitURLs(urls)
	if len(list) == 0 {
		return protocol.Invalid("nats", "must be the URL of a NATS server")
	}
	for _, text := range list {
		if !strings.Contains(text, "://") {
			text = "nats://" + text // the NATS client adds the scheme too
		}
		u, err := url.Parse(text)
		if err != nil {
			// The error of url.Parse contains the URL, and therefore possibly a password.
			return protocol.Invalid("nats", "could not parse one of the URLs: "+
				"want nats://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return protocol.Invalid("nats", "%s: want nats, tls, ws or wss in place of %q", redacted(text), u.Scheme)
		}
		if port, err := strconv.Atoi(
			cmp.Or(u.Port(), "4222"),
		); err != nil || port < 1 || port > 65535 ||
			u.Hostname() == "" {
			return protocol.Invalid("nats", "%s names no host and port", redacted(text))
		}
	}
	return nil
}

const (
	awayPause  = 250 * time.Millisecond // pause between two attempts while NATS is unreachable
	awayJitter = 100 * time.Millisecond // largest random addition to awayPause
	// While a server refuses the credentials, the pause between attempts grows from refusedPause to refusedMost,
	// because new credentials may take long to arrive.
	refusedPause = 500 * time.Millisecond
	refusedMost  = 30 * time.Second
	refusedAgain = time.Minute // pause between two log lines about a refusal
	refusedCheck = time.Second // pause between two checks for new credentials
	// distrustMost is the longest pause while TLS fails. The server may be the cause, and nobody announces its repair.
	distrustMost = 5 * time.Second
)

// credentials identify a connection, and record whether the server accepts them and whether TLS with the server works.
// The credentials and the certificates are read again at each attempt to connect.
type credentials struct {
	log         *slog.Logger
	file        string                              // the credentials file; empty: there is none
	from        string                              // where the credentials are read from, for log lines
	fingerprint func() string                       // returns a text that changes with the credentials and certificates
	explain     func(err error, doing string) error // see [Config.explain]
	tls         func(err error) *protocol.Error     // see [TLS.explain]
	nc          atomic.Pointer[nats.Conn]           // nil until the first connection

	closed <-chan struct{} // closed when the connection is closed for good

	mu       sync.Mutex
	signer   *signer // signer of the key that was last presented to a server; nil: the connection has no key
	watched  bool    // a goroutine watches the credentials for changes
	login    Login
	unread   error         // error of the last attempt to read the credentials
	refused  error         // why the last attempt failed, if a refusal or TLS is the cause; nil: neither
	longest  time.Duration // longest pause after such a failure
	again    bool          // the credentials were refused or unreadable, or TLS failed, since the last pause
	held     string        // fingerprint of the credentials and certificates when the server accepted them
	seed     *signer       // signer of the seed file that the client presents; nil: none
	refusals int           // number of successive pauses that followed a refusal
	said     time.Time     // when the refusal was last logged
}

// options returns the client's options for the credentials and for TLS.
func (k *credentials) options(cfg Config) ([]nats.Option, error) {
	if err := cfg.checkSecrets(k.log); err != nil {
		return nil, err
	}
	k.explain, k.tls = cfg.explain, cfg.TLS.explain
	k.fingerprint = cfg.fingerprint
	k.held = k.fingerprint()
	options := []nats.Option{
		// Without this option, the client closes the connection for good when a server refuses the credentials twice.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(func(int) time.Duration { return k.pause() }),
		nats.ReconnectErrHandler(k.failed),
	}
	if cfg.InProcess == nil {
		options = append(options, cfg.TLS.apply)
	}
	switch {
	case cfg.Login != nil:
		login, err := cfg.readLogin()
		if err != nil {
			return nil, err
		}
		k.login = login
		// The client asks for the user first, then for the token.
		options = append(options,
			nats.UserInfoHandler(func() (string, string) { l := k.read(cfg.readLogin); return l.User, l.Password }),
			nats.TokenHandler(func() string {
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.login.User != "" {
					return ""
				}
				return k.login.Token
			}))
	case cfg.Token != "":
		options = append(options, nats.Token(cfg.Token))
	}
	k.file = cfg.Creds
	switch {
	case cfg.Creds != "":
		if f, err := os.Open(cfg.Creds); err != nil {
			return nil, unreadable("creds", cfg.Creds, err)
		} else {
			f.Close()
		}
		options = append(options, nats.UserCredentials(cfg.Creds), k.readFile(cfg.Creds))
	case cfg.NKey != "":
		options = append(options, k.readSeed(cfg.NKey))
	}
	return options, nil
}

// readLogin reads the login and the files that it names.
func (cfg *Config) readLogin() (Login, error) {
	login, err := cfg.Login()
	if err != nil {
		return Login{}, err
	}
	return login.read()
}

// fingerprint returns a text that changes with the credentials and the certificates. It ignores files that it cannot
// read: the next attempt to connect reports them.
func (cfg *Config) fingerprint() string {
	sum := sha256.New()
	if cfg.Login != nil {
		login, _ := cfg.readLogin()
		fmt.Fprintf(sum, "%q", login)
	}
	for _, file := range []string{cfg.Creds, cfg.NKey, cfg.TLS.CA, cfg.TLS.Cert, cfg.TLS.Key} {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(sum, "%q", text)
	}
	return string(sum.Sum(nil))
}

// checkSecrets refuses settings that exclude each other, and TLS files that cannot be used. It warns about secrets that
// all users of the machine can read. Errors: invalid_argument with the field.
func (cfg *Config) checkSecrets(log *slog.Logger) error {
	var login Login
	var err error
	if cfg.Login != nil {
		if login, err = cfg.Login(); err != nil {
			return err
		}
	}
	_, inURL, same := SplitLogin(cfg.URL)
	hasKey, where := cfg.Creds+cfg.NKey != "", "creds"
	if cfg.NKey != "" {
		where = "nkey"
	}
	switch {
	case cfg.Creds != "" && cfg.NKey != "":
		return protocol.Invalid("nkey", "must not be set together with creds: a connection has one key")
	case hasKey && login.User != "":
		return protocol.Invalid("login", "must not be set together with %s: a connection has one identity", where)
	case hasKey && cfg.Token+login.Token+login.TokenFile != "":
		return protocol.Invalid("token", "must not be set together with %s: a connection has one identity", where)
	case (hasKey || login != Login{}) && cfg.InProcess == nil && (!same || inURL != Login{}):
		return protocol.Invalid("nats",
			"a URL contains a login, which must not be set together with login, token, creds or nkey")
	}
	for _, file := range []string{cfg.Creds, cfg.NKey, login.PasswordFile, login.TokenFile, cfg.TLS.Key} {
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o007 != 0 {
			log.Warn("every user of this machine has access to a secret", "file", file, "do", "chmod o-rwx "+file)
		}
	}
	return cfg.TLS.check()
}

// notCredentials is the error for a file that is not one with credentials.
func notCredentials(file string, err error) error {
	return protocol.Invalid("creds", "%s has no credentials, which are the two parts USER JWT and USER NKEY SEED: name a "+
		"file that boxfleet auth add wrote: %v", file, err)
}

// readFile returns an option of the client. At each attempt to connect, the option records in k whether the client
// could read the credentials file, and which key it presented.
func (k *credentials) readFile(file string) nats.Option {
	return func(o *nats.Options) error {
		jwt, sign := o.UserJWT, o.SignatureCB
		if _, err := jwt(); err != nil {
			return notCredentials(file, err)
		}
		if _, err := sign([]byte("nonce")); err != nil {
			return notCredentials(file, err)
		}
		o.UserJWT = func() (string, error) {
			text, err := jwt()
			k.note(err)
			return text, err
		}
		o.SignatureCB = func(nonce []byte) ([]byte, error) {
			signature, err := sign(nonce)
			if err != nil {
				k.note(err)
				return nil, err
			}
			k.presented(file, nonce, signature)
			return signature, nil
		}
		return nil
	}
}

// readSeed returns an option that makes the client present the key whose seed is in a file. The client sends the public
// key before the server asks for a signature, so it reads the file when it dials.
func (k *credentials) readSeed(file string) nats.Option {
	return func(o *nats.Options) error {
		if err := k.reseed(file, &o.Nkey); err != nil {
			return protocol.Invalid("nkey", "could not read the seed of an NKey in %s: %v", file, err)
		}
		o.CustomDialer = seedDialer{k, file}
		o.SignatureCB = func(nonce []byte) ([]byte, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.signer = k.seed
			return ed25519.Sign(k.seed.key, nonce), nil
		}
		return nil
	}
}

// reseed reads the seed in the file, and sets the public key that the client will present.
func (k *credentials) reseed(file string, public *string) error {
	s, err := signerOf(file)
	k.note(err)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seed, *public = s, s.public
	return nil
}

// seedDialer dials, and makes the client present the key whose seed the file contains now.
type seedDialer struct {
	k    *credentials
	file string
}

// Dial dials for the client. The client calls Dial before it reads its options, in the same goroutine and under the
// same lock.
func (d seedDialer) Dial(network, address string) (net.Conn, error) {
	if nc := d.k.nc.Load(); nc != nil {
		if err := d.k.reseed(d.file, &nc.Opts.Nkey); err != nil {
			return nil, err
		}
	}
	return net.DialTimeout(network, address, nats.DefaultTimeout)
}

// presented records the key of a credentials file as the connection's key, if this key made the signature that a server
// asked for. If the file has changed since the signature, the connection keeps the previous key until it connects
// again.
func (k *credentials) presented(file string, nonce, signature []byte) {
	s, err := signerOf(file)
	if err != nil || !s.proves(nonce, signature) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.signer = s
}

// key returns the signer of the key that was last presented to a server, or nil if the connection has no key.
func (k *credentials) key() *signer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.signer
}

// CredentialsLife returns when the credentials in the connection's file were made and when they expire. They may be
// newer than those that it presented to its server: it presents them when the old ones expire. Zero: unknown, never, or
// the connection has no readable credentials file.
func (c *connection) CredentialsLife() (issued, expires time.Time) {
	content, err := os.ReadFile(c.login.file)
	if err != nil {
		return time.Time{}, time.Time{} // Health reports it when the connection needs the file
	}
	defer clear(content)
	return rights.Life(content)
}

// read reads the login again. If that fails, it returns the previous login.
func (k *credentials) read(login func() (Login, error)) Login {
	l, err := login()
	k.note(err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.login = l
	}
	return k.login
}

func (k *credentials) note(unread error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unread = unread
	if unread != nil {
		k.again = true
	}
}

// isRefusal reports whether a server refused the credentials.
func isRefusal(err error) bool {
	refusals := []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrNkeysNotSupported}
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// failed records why an attempt to connect again failed, if the credentials or TLS are the cause. The client reports
// some of these errors in no other way.
func (k *credentials) failed(nc *nats.Conn, err error) {
	if err != nil && (k.tls(err) != nil || isRefusal(err) || k.isUnread()) {
		k.refuse(nc, err)
	}
}

func (k *credentials) isUnread() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.unread != nil
}

// refuse records that a server refused the credentials, that TLS with the server failed, or that the credentials could
// not be read. It logs the failure at most once a minute, and starts watching the credentials.
func (k *credentials) refuse(nc *nats.Conn, err error) {
	title := "NATS refuses this process's credentials; the process keeps trying to connect"
	do := "replace the credentials that this process reads with some that the server accepts; it then reconnects by itself"
	var why error
	longest := refusedMost
	switch {
	case k.tls(err) != nil:
		why, longest = k.explain(err, "TLS with NATS fails"), distrustMost
		title, do = "TLS with NATS fails; the process keeps trying to connect", "see error; this process reconnects by itself"
	case isRefusal(err):
		why = k.explain(err, "NATS refuses the credentials")
	}
	now := k.fingerprint()
	k.mu.Lock()
	defer k.mu.Unlock()
	if why == nil {
		refused := protocol.Errorf(protocol.PermissionDenied, "", "NATS refuses the credentials: %v", err)
		why = cmp.Or(k.refused, error(refused))
	}
	k.refused, k.again, k.longest = why, true, longest
	if !k.watched {
		k.watched = true
		go k.watch(nc)
	}
	if ended := errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAuthExpired); ended && now != k.held {
		k.log.Info("NATS refuses the previous credentials of this process; trying the new ones", "error", err)
		return
	}
	if time.Since(k.said) < refusedAgain {
		return
	}
	k.said = time.Now()
	attrs := []any{"error", why, "do", do}
	if k.from != "" {
		attrs = append(attrs, "read from", k.from)
	}
	if k.unread != nil {
		attrs = append(attrs, "unreadable", k.unread)
	}
	k.log.Error(title, attrs...)
}

// watch makes the client try changed credentials immediately, until a server accepts the credentials. While the server
// has new credentials and the process has not, the pause between attempts grows up to refusedMost. A worker that waited
// for such a pause after its credentials changed could lose its host's lock.
func (k *credentials) watch(nc *nats.Conn) {
	before := k.fingerprint()
	for {
		select {
		case <-k.closed:
			return
		case <-time.After(refusedCheck):
		}
		k.mu.Lock()
		if k.refused == nil {
			k.watched = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		now := k.fingerprint()
		if now == before {
			continue
		}
		before = now
		k.mu.Lock()
		k.refusals = 0
		k.mu.Unlock()
		if nc.IsReconnecting() {
			_ = nc.ForceReconnect() // fails only when the connection is closed
		}
	}
}

// accepted records that a server accepted the credentials.
func (k *credentials) accepted() {
	held := k.fingerprint()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unread, k.refused, k.again, k.refusals, k.said, k.held = nil, nil, false, 0, time.Time{}, held
}

// problem returns nil unless the credentials were refused or unreadable since the connection was lost.
func (k *credentials) problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.unread != nil:
		return protocol.Errorf(protocol.PermissionDenied, "", "could not read the credentials for NATS: %v", k.unread)
	case k.refused != nil:
		return k.refused
	}
	return nil
}

// pause returns how long the client waits after it has tried all servers. It also records why the last server failed:
// the client does not report a failure of TLS.
func (k *credentials) pause() time.Duration {
	if nc := k.nc.Load(); nc != nil {
		k.failed(nc, nc.LastError())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.again {
		k.refusals = 0
		return awayPause + rand.N(awayJitter)
	}
	k.again = false
	k.refusals++
	pause := min(refusedPause<<min(k.refusals-1, 10), cmp.Or(k.longest, refusedMost))
	return pause + rand.N(pause/4)
}

// redacted returns URLs without their logins. User names are removed too, because a user name without a password is a
// token. URLs may lack a scheme.
func redacted(urls string) string {
	list := splitURLs(urls)
	for i, text := range list {
		scheme, rest, found := strings.Cut(text, "://")
		if !found {
			scheme, rest = "", text
		} else {
			scheme += "://"
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			list[i] = scheme + "xxxxx" + rest[at:]
		}
	}
	return strings.Join(list, ",")
}
