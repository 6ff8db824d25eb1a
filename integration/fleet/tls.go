package fleet

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/integration/certs"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/sdk"
)

// secured has the certificates of a fleet with TLS.
type secured struct {
	dir     string
	ca      *certs.CA       // signs new certificates
	trusted []*certs.CA     // authorities that servers and clients trust
	clients map[string]bool // names of the clients that have a certificate
}

// startTLS makes an authority.
func (f *Fleet) startTLS() {
	f.TB.Helper()
	f.tls = &secured{dir: filepath.Join(f.Dir, "tls"), clients: map[string]bool{}}
	if err := os.Mkdir(f.tls.dir, 0o700); err != nil {
		f.TB.Fatal(err)
	}
	f.tls.add(f.TB)
	f.tls.trust(f.TB, f.tls.ca)
}

// add makes another authority, which signs certificates from now on.
func (s *secured) add(tb testing.TB) {
	tb.Helper()
	var err error
	if s.ca, err = certs.NewCA(s.dir, "authority"); err != nil {
		tb.Fatal(err)
	}
}

// bundle is the file with the authorities that the clients trust.
func (s *secured) bundle() string { return filepath.Join(s.dir, "ca.pem") }

// trust sets the authorities that clients trust, and that servers trust after their next reload.
func (s *secured) trust(tb testing.TB, authorities ...*certs.CA) {
	tb.Helper()
	s.trusted = authorities
	if err := certs.Bundle(s.bundle(), authorities...); err != nil {
		tb.Fatal(err)
	}
}

// server returns a configuration with a new certificate.
func (s *secured) server(tb testing.TB) *tls.Config {
	tb.Helper()
	cert, key, err := s.ca.Issue(s.dir, "server", time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := certs.Server(cert, key, s.trusted...)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// clientTLS returns the files of a client. It makes them at the first call.
func (f *Fleet) clientTLS(name string) jetstream.TLS {
	f.TB.Helper()
	if f.tls == nil {
		return jetstream.TLS{}
	}
	file := filepath.Join(f.tls.dir, name)
	if !f.tls.clients[name] {
		f.tls.clients[name] = true
		f.issue(name)
	}
	return jetstream.TLS{CA: f.tls.bundle(), Cert: file + ".pem", Key: file + ".key"}
}

// issue replaces the certificate and the key of a client.
func (f *Fleet) issue(name string) {
	f.TB.Helper()
	if _, _, err := f.tls.ca.Issue(f.tls.dir, name, time.Hour); err != nil {
		f.TB.Fatal(err)
	}
}

// ReplaceAuthority replaces the authority and all certificates, in the order in which an operator does. After each step
// it cuts all connections, so that each client connects with the files of that step.
func (f *Fleet) ReplaceAuthority() {
	f.TB.Helper()
	s := f.tls
	s.add(f.TB)
	s.trust(f.TB, append(s.trusted, s.ca)...)
	f.reloadTLS()
	f.Cut()
	for name := range s.clients {
		f.issue(name)
	}
	f.Cut()
	s.trust(f.TB, s.ca)
	f.reloadTLS()
	f.Cut()
}

func (f *Fleet) reloadTLS() {
	f.TB.Helper()
	if err := f.Servers[0].ReloadTLS(f.tls.server(f.TB)); err != nil {
		f.TB.Fatal(err)
	}
}

// Cut ends all connections of clients, and waits until each user has as many as before.
func (f *Fleet) Cut() {
	f.TB.Helper()
	before := f.connections()
	for id := range before {
		_ = f.Servers[0].DisconnectClientByID(id) // fails if the connection has ended meanwhile
	}
	f.Eventually(30*time.Second, "all clients have connected again", func() error {
		now := f.connections()
		for id := range before {
			if now[id] != "" {
				return fmt.Errorf("connection %d has not ended", id)
			}
		}
		missing := map[string]int{} // missing connections by user; other clients may connect meanwhile
		for _, user := range before {
			missing[user]++
		}
		for _, user := range now {
			missing[user]--
		}
		for user, n := range missing {
			if n > 0 {
				return fmt.Errorf("%d connections of %s", n, user)
			}
		}
		return nil
	})
}

// connections returns the users of all connections by their ids. The user is the key of the credentials.
func (f *Fleet) connections() map[uint64]string {
	f.TB.Helper()
	found, err := f.Servers[0].Connz(&server.ConnzOptions{Limit: 10000, Username: true})
	if err != nil {
		f.TB.Fatal(err)
	}
	all := map[uint64]string{}
	for _, c := range found.Conns {
		all[c.Cid] = cmp.Or(c.AuthorizedUser, "anonymous")
	}
	return all
}

// ReplaceCredentials replaces the credentials of all processes and of the test's user, and then revokes the old ones,
// which ends their connections.
func (f *Fleet) ReplaceCredentials() {
	f.TB.Helper()
	if f.access == "" {
		return
	}
	files := []string{f.Options(sdk.Options{}).Creds}
	for _, kind := range []string{"coordinator", "worker"} {
		for _, p := range f.Processes(kind) {
			files = append(files, p.Role.Creds)
		}
	}
	for _, file := range files {
		old, _, err := jetstream.CredentialsIdentity(file)
		if err != nil {
			f.TB.Fatal(err)
		}
		used := slices.Contains(slices.Collect(maps.Values(f.connections())), old.Key)
		revoke, err := f.access.Replace(file)
		if err != nil {
			f.TB.Fatal(err)
		}
		accounts, err := revoke()
		if err != nil {
			f.TB.Fatal(err)
		}
		for _, account := range accounts {
			if err := f.Servers[0].SetAccount(account); err != nil {
				f.TB.Fatal(err)
			}
		}
		if !used {
			f.TB.Errorf("no connection used the credentials in %s", file)
		}
		next, _, err := jetstream.CredentialsIdentity(file)
		if err != nil {
			f.TB.Fatal(err)
		}
		f.Eventually(30*time.Second, "a connection uses the new credentials in "+file, func() error {
			users := slices.Collect(maps.Values(f.connections()))
			if slices.Contains(users, old.Key) || !slices.Contains(users, next.Key) {
				return fmt.Errorf("connections belong to %q", users)
			}
			return nil
		})
	}
}
