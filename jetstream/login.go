package jetstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Login identifies a connection: a user with a password, or a token. The zero value is anonymous.
type Login struct{ User, Password, Token string }

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
	refusedCheck = time.Second // pause between two checks for new credentials, which are tried immediately
)

// credentials identify a connection and record whether the server accepts them. They are read again at each attempt
// to connect.
type credentials struct {
	log         *slog.Logger
	file        string        // the credentials file; empty: there is none
	from        string        // where the credentials are read from, for log lines
	fingerprint func() string // returns a text that changes with the credentials

	closed <-chan struct{} // closed when the connection is closed for good

	mu       sync.Mutex
	signer   *signer // of the key that was last presented to a server; nil: the connection has no key
	watched  bool    // a goroutine watches the credentials for changes
	login    Login
	unread   error     // error of the last attempt to read the credentials
	refused  error     // the server's last refusal since the connection was lost; nil: no refusal
	again    bool      // the credentials were refused or unreadable since the last pause
	refusals int       // number of successive pauses that followed a refusal
	said     time.Time // when the refusal was last logged
}

// options returns the client's options for the credentials.
func (k *credentials) options(cfg Config) ([]nats.Option, error) {
	k.fingerprint = func() string {
		var login Login
		if cfg.Login != nil {
			login, _ = cfg.Login() // the next attempt to connect reads the login again and reports the error
		}
		file, _ := os.ReadFile(cfg.Creds) // the next attempt to connect reports the error
		return fmt.Sprintf("%q %s", login, file)
	}
	options := []nats.Option{
		// Without this option, the client closes the connection for good when a server refuses it twice.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(func(int) time.Duration { return k.pause() }),
	}
	switch {
	case cfg.Login != nil:
		login, err := cfg.Login()
		if err != nil {
			return nil, err
		}
		k.login = login
		// The client asks for the user first, then for the token.
		options = append(options,
			nats.UserInfoHandler(func() (string, string) { l := k.read(cfg.Login); return l.User, l.Password }),
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
	if k.file = cfg.Creds; k.file != "" {
		if f, err := os.Open(cfg.Creds); err != nil {
			return nil, unreadable(cfg.Creds, err)
		} else {
			f.Close()
		}
		options = append(options, nats.UserCredentials(cfg.Creds), k.readFile(cfg.Creds))
	}
	return options, nil
}

// readFile returns an option of the client. At each attempt to connect, the option records in k whether the client
// could read the credentials file, and which key it presented.
func (k *credentials) readFile(file string) nats.Option {
	return func(o *nats.Options) error {
		jwt, sign := o.UserJWT, o.SignatureCB
		if _, err := jwt(); err != nil {
			return protocol.Invalid("creds", "could not read the NATS credentials file: %v", err)
		}
		if _, err := sign([]byte("nonce")); err != nil {
			return protocol.Invalid("creds", "could not read the NATS credentials file: %v", err)
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
	refusals := []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired}
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// refuse records that a server refused the credentials, logs the refusal at most once a minute, and starts watching the
// credentials.
func (k *credentials) refuse(nc *nats.Conn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused, k.again = err, true
	if !k.watched {
		k.watched = true
		go k.watch(nc)
	}
	if time.Since(k.said) < refusedAgain {
		return
	}
	k.said = time.Now()
	attrs := []any{"error", err, "do",
		"replace the credentials that this process reads with some that the server accepts; it then reconnects by itself"}
	if k.from != "" {
		attrs = append(attrs, "read from", k.from)
	}
	if k.unread != nil {
		attrs = append(attrs, "unreadable", k.unread)
	}
	k.log.Error("NATS refuses this process's credentials; the process keeps trying to connect", attrs...)
}

// watch makes the client try changed credentials immediately, until a server accepts the credentials. If the server's
// credentials change before those of the process, the pause between attempts grows up to refusedMost. A worker that
// waited for such a pause after its credentials changed could lose its host's lock.
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
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unread, k.refused, k.again, k.refusals, k.said = nil, nil, false, 0, time.Time{}
}

// problem returns nil unless the credentials were refused or unreadable since the connection was lost.
func (k *credentials) problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.unread != nil:
		return protocol.Errorf(protocol.PermissionDenied, "", "could not read the credentials for NATS: %v", k.unread)
	case k.refused != nil:
		return protocol.Errorf(protocol.PermissionDenied, "", "NATS refuses the credentials: %v", k.refused)
	}
	return nil
}

// pause returns how long the client waits after it has tried all servers.
func (k *credentials) pause() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.again {
		k.refusals = 0
		return awayPause + rand.N(awayJitter)
	}
	k.again = false
	k.refusals++
	pause := min(refusedPause<<min(k.refusals-1, 10), refusedMost)
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
