package embedded_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// operators makes an authority. It also returns the configuration with which a server trusts this authority.
func operators(t *testing.T) (*auth.Authority, *embedded.Operators) {
	t.Helper()
	a, err := auth.Init(filepath.Join(t.TempDir(), "authority"), false)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return a, &embedded.Operators{Operator: trust.Operator, System: trust.System, Accounts: trust.Accounts}
}

// credentials issues credentials and returns their file.
func credentials(t *testing.T, a *auth.Authority, id rights.Identity) string {
	t.Helper()
	c, err := a.Issue(id, auth.IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(file, c.Text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// connect connects in the process, with the inboxes of an identity.
func connect(t *testing.T, s *embedded.Server, id rights.Identity, file string) (*jetstream.Conn, error) {
	t.Helper()
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{
		InProcess: s, Creds: file, Name: id.Name, Options: func(o *nats.Options) { o.InboxPrefix = id.Inbox() },
	})
	if err == nil {
		t.Cleanup(conn.Close)
	}
	return conn, err
}

func TestInProcessClientsNeedCredentialsInOperatorMode(t *testing.T) {
	t.Parallel()
	a, trusted := operators(t)
	s := start(t, embedded.Config{Dir: t.TempDir(), Port: -1, Operators: trusted})
	id := rights.Identity{Role: rights.Coordinator, Name: "c1"}
	conn, err := connect(t, s, id, credentials(t, a, id))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Errorf("a coordinator makes the streams: %v", err)
	}
	// The pipe inside the process may close before the client has read the server's reason, so the test does not
	// compare the code of the error.
	if _, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: s}); err == nil {
		t.Error("a client without credentials was accepted")
	}
	other, _ := operators(t)
	if _, err := connect(t, s, id, credentials(t, other, id)); err == nil {
		t.Error("a client with credentials of another operator was accepted")
	}
}

func TestARevocationReachesARunningServerAndOutlivesItsRestart(t *testing.T) {
	t.Parallel()
	a, trusted := operators(t)
	s := start(t, embedded.Config{Dir: t.TempDir(), Operators: trusted})
	id := rights.Identity{Role: rights.Coordinator, Name: "c1"}
	file := credentials(t, a, id)
	conn, err := connect(t, s, id, file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Revoke(id); err != nil {
		t.Fatal(err)
	}
	changed, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	for key, account := range changed.Accounts {
		if account == trusted.Accounts[key] {
			continue
		}
		if err := s.SetAccount(account); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(t, 10*time.Second, "the connection ends", func() bool { return !conn.Connected() })
	conn.Close()
	s.Stop()
	again, err := s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Stop)
	_, err = jetstream.Connect(t.Context(), jetstream.Config{URL: again.ClientURL(), Creds: file})
	if protocol.CodeOf(err) != protocol.PermissionDenied {
		t.Errorf("after the restart: got %v", err)
	}
}

func TestAServerRefusesAnOperatorThatDidNotSignItsAccounts(t *testing.T) {
	t.Parallel()
	_, trusted := operators(t)
	_, other := operators(t)
	lacking := maps.Clone(trusted.Accounts)
	delete(lacking, trusted.System)
	for _, c := range []struct {
		field string
		cfg   embedded.Config
	}{
		{"token", embedded.Config{Token: "t", Operators: trusted}},
		{"operator", embedded.Config{Operators: &embedded.Operators{Operator: "x"}}},
		{"accounts", embedded.Config{Operators: &embedded.Operators{
			Operator: trusted.Operator, System: other.System, Accounts: other.Accounts}}},
		{"accounts", embedded.Config{Operators: &embedded.Operators{
			Operator: trusted.Operator, System: trusted.System, Accounts: lacking}}},
	} {
		c.cfg.Dir = t.TempDir()
		if _, err := embedded.Start(c.cfg); protocol.AsError(err).Field != c.field {
			t.Errorf("%s: got %v", c.field, err)
		}
	}
	plain := start(t, embedded.Config{Dir: t.TempDir(), Port: -1})
	if err := plain.SetAccount(trusted.Accounts[trusted.System]); protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("a server without operator mode: got %v", err)
	}
	s := start(t, embedded.Config{Dir: t.TempDir(), Port: -1, Operators: trusted})
	for _, account := range other.Accounts {
		if err := s.SetAccount(account); protocol.AsError(err).Field != "accounts" {
			t.Errorf("an account of another operator: got %v", err)
		}
	}
}
