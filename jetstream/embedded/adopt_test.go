package embedded_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// inStore runs a server on a store, checks that the store still has the histories in before, and begins two more
// histories. It returns all histories. If the parameter a is nil, the server has no operator.
func inStore(t *testing.T, dir string, a *auth.Authority, before []string) (now []string) {
	t.Helper()
	cfg, conf := embedded.Config{Dir: dir, Port: -1}, jetstream.Config{}
	if a != nil {
		trust, err := a.Trust()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Operators = &embedded.Operators{Operator: trust.Operator, System: trust.System, Streams: trust.Streams,
			Accounts: trust.Accounts}
		conf.Creds = filepath.Join(t.TempDir(), "creds")
		if _, err := a.Keep(rights.Identity{Role: rights.Coordinator, Name: "k1"}, conf.Creds,
			auth.IssueOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	conf.InProcess = s
	c, err := jetstream.Connect(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range before {
		history, err := c.History(t.Context(), "t1", id, 0)
		if err != nil || len(history) != 1 {
			t.Errorf("history of %s: %v, %v", id, history, err)
		}
	}
	for range 2 {
		id := newID()
		b := &protocol.Batch{Version: protocol.Version, ID: "b-" + id, Writer: "k1", Tenant: "t1", Sandbox: id}
		b.Events = []protocol.Event{{
			Sequence: 1, Kind: protocol.SandboxAccepted, State: protocol.StatePending, Time: time.Now().UTC(),
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}}}}
		if _, err := c.Append(t.Context(), b, 0); err != nil {
			t.Fatal(err)
		}
		before = append(before, id)
	}
	return before
}

// A store keeps its streams when it gets an operator, when the operator is replaced, and when the store has no operator
// any more.
func TestAStoreKeepsItsStreamsWhenItsAccountChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, _ := operators(t)
	other, _ := operators(t)
	var histories []string
	for _, a := range []*auth.Authority{nil, first, first, other, nil, nil, other} {
		histories = inStore(t, dir, a, histories)
		has, err := embedded.HasOperator(dir)
		if err != nil || has != (a != nil) {
			t.Errorf("the streams belong to an operator: %v, %v", has, err)
		}
	}
}

// A crash leaves the streams with the old account or with the new one. In both cases a server may already have made
// empty directories for the new account.
func TestStreamsAreAdoptedWhateverACrashLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	histories := inStore(t, dir, nil, nil)
	a, trusted := operators(t)
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "jetstream", trust.Streams, "streams"), 0o700); err != nil {
		t.Fatal(err)
	}
	histories = inStore(t, dir, a, histories)
	// An empty directory of an account, as a server leaves it behind, does not count.
	if err := os.MkdirAll(filepath.Join(dir, "jetstream", "$G", "streams"), 0o700); err != nil {
		t.Fatal(err)
	}
	inStore(t, dir, a, histories)
	if err := os.MkdirAll(filepath.Join(dir, "jetstream", "$G", "streams", "OTHER"), 0o700); err != nil {
		t.Fatal(err)
	}
	trusted.Streams = trust.Streams
	_, err = embedded.Start(embedded.Config{Dir: dir, Port: -1, Operators: trusted})
	if protocol.CodeOf(err) != protocol.FailedPrecondition {
		t.Errorf("two accounts have streams: got %v", err)
	}
}
