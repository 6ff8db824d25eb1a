package jetstream

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
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
)

// Login is who a connection says it is: a user with a password, or a token. The zero value says nothing.
type Login struct{ User, Password, Token string }

// SplitLogin takes the login out of URLs of NATS, comma separated, so that it can be read again. same is
// false, and the URLs are returned as they are, where they carry different ones.
func SplitLogin(urls string) (without string, login Login, same bool) {
	var found *url.Userinfo
	for i, text := range splitURLs(urls) {
		if !strings.Contains(text, "://") {
			text = "nats://" + text // as the client does
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
		return without, Login{Token: found.Username()}, true // as NATS reads it
	}
	return without, Login{User: found.Username(), Password: password}, true
}

// checkURLs refuses what no server can be reached by, whatever becomes of the network.
func checkURLs(urls string) error {
	list := splitURLs(urls)
	if len(list) == 0 {
		return protocol.Invalid("nats", "must be the URL of a NATS server")
	}
	for _, text := range list {
		if !strings.Contains(text, "://") {
			text = "nats://" + text // as the client does
		}
		u, err := url.Parse(text)
		if err != nil {
			// What url.Parse says has the whole URL in it, and so perhaps a password.
			return protocol.Invalid("nats", "one of the URLs cannot be read: want nats://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return protocol.Invalid("nats", "%s: want nats, tls, ws or wss in place of %q", redacted(text), u.Scheme)
		}
		if port, err := strconv.Atoi(cmp.Or(u.Port(), "4222")); err != nil || port < 1 || port > 65535 || u.Hostname() == "" {
			return protocol.Invalid("nats", "%s names no host and port", redacted(text))
		}
	}
	return nil
}

const (
	awayPause  = 250 * time.Millisecond // between two tries where NATS is away
	awayJitter = 100 * time.Millisecond // on top, at most
	// A server that refuses the credentials is asked more and more rarely: the next ones may be long in coming.
	refusedPause = 500 * time.Millisecond
	refusedMost  = 30 * time.Second
	refusedAgain = time.Minute // between two lines in the log about it
	refusedLook  = time.Second // between two looks whether the credentials have changed, which are then tried at once
)

// credentials is how a connection shows who it is, and how it stands with that. They are read again at
// each try to connect.
type credentials struct {
	log  *slog.Logger
	from string        // where they are read, for people
	look func() string // something else after a change

	closed <-chan struct{} // with the connection

	mu       sync.Mutex
	watched  bool // whether they change
	login    Login
	unread   error     // they could not be read last time
	refused  error     // by the server, since the connection was lost; nil where it was not
	again    bool      // refused since the last pause
	refusals int       // pauses in a row that followed a refusal
	said     time.Time // when the log was told last
}

// options are those of the client that are about credentials.
func (k *credentials) options(cfg Config) ([]nats.Option, error) {
	k.look = func() string {
		var login Login
		if cfg.Login != nil {
			login, _ = cfg.Login() // one that cannot be read is no other one yet
		}
		file, _ := os.ReadFile(cfg.Creds)
		return fmt.Sprintf("%q %s", login, file)
	}
	options := []nats.Option{
		// The client would otherwise close itself for good when a server refuses it twice.
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
		// The client asks for the user first, and then for the token.
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
	if cfg.Creds != "" {
		if f, err := os.Open(cfg.Creds); err != nil {
			var of *fs.PathError
			if errors.As(err, &of) {
				err = of.Err
			}
			return nil, protocol.Invalid("creds", "cannot read %s: %v", cfg.Creds, err)
		} else {
			f.Close()
		}
		options = append(options, nats.UserCredentials(cfg.Creds), k.readFile)
	}
	return options, nil
}

// readFile notes whether the credentials file could be read, which the client reads at each try.
func (k *credentials) readFile(o *nats.Options) error {
	jwt, sign := o.UserJWT, o.SignatureCB
	if _, err := jwt(); err != nil {
		return protocol.Invalid("creds", "the NATS credentials file cannot be read: %v", err)
	}
	if _, err := sign([]byte("nonce")); err != nil {
		return protocol.Invalid("creds", "the NATS credentials file cannot be read: %v", err)
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
		}
		return signature, err
	}
	return nil
}

// read reads the login again. One that cannot be read now is taken to be as it was.
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

// isRefusal says whether a server did not take the credentials.
func isRefusal(err error) bool {
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// refuse notes that a server refused the credentials, says so once a minute, and has them watched.
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
	attrs := []any{"error", err, "do", "put credentials that the server takes where this process reads them; it goes on by itself"}
	if k.from != "" {
		attrs = append(attrs, "read from", k.from)
	}
	if k.unread != nil {
		attrs = append(attrs, "unreadable", k.unread)
	}
	k.log.Error("NATS refuses this process; it keeps trying", attrs...)
}

// watch has changed credentials tried at once, until a server takes some. A host lock outlives a rotation in
// which the server is the first to change, but not half a minute more.
func (k *credentials) watch(nc *nats.Conn) {
	before := k.look()
	for {
		select {
		case <-k.closed:
			return
		case <-time.After(refusedLook):
		}
		k.mu.Lock()
		if k.refused == nil {
			k.watched = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		now := k.look()
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

// took notes that a server took the credentials.
func (k *credentials) took() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unread, k.refused, k.again, k.refusals, k.said = nil, nil, false, 0, time.Time{}
}

// standing is nil unless the credentials were refused, or could not be read, since the connection was lost.
func (k *credentials) standing() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.unread != nil:
		return protocol.Errorf(protocol.PermissionDenied, "", "the credentials for NATS cannot be read: %v", k.unread)
	case k.refused != nil:
		return protocol.Errorf(protocol.PermissionDenied, "", "NATS refuses the credentials: %v", k.refused)
	}
	return nil
}

// pause is how long the client waits before it tries the servers again, all of which it has tried.
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

// redacted is URLs without who connects: a name without a password is a token. They may have no scheme.
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
