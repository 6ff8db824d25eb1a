package auth_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// push gives the server the authority's present accounts.
func push(t *testing.T, a *auth.Authority, s *testServer) {
	t.Helper()
	credentials, err := a.SystemCredentials()
	if err != nil {
		t.Fatal(err)
	}
	system, err := jetstream.ConnectSystem(t.Context(), s.ClientURL(), jetstream.TLS{}, credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	servers, err := a.Push(t.Context(), system)
	if err != nil || !slices.Equal(servers, []string{"test"}) {
		t.Fatalf("pushed to %q: %v", servers, err)
	}
}

func accepts(s *testServer, c *auth.Credentials) bool {
	nc, err := connect(s, nats.UserCredentialBytes(c.Text))
	if err == nil {
		nc.Close()
	}
	return err == nil
}

func TestExpiredCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	c, err := a.Issue(someone(rights.User, "anna", "blue", ""), auth.IssueOptions{Life: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	nc := dial(t, s, c)
	waitRefused(t, s, c)
	if time.Now().Before(c.Expires) {
		t.Errorf("refused before %v", c.Expires)
	}
	eventually.Holds(t, 10*time.Second, "the connection ends with its credentials", nc.IsClosed)
	all, err := a.Find(c.Identity())
	if err != nil || len(all) != 1 || all[0].Status(time.Now()) != "expired" {
		t.Errorf("got %+v, %v", all, err)
	}
	if _, err := a.Issue(someone(rights.User, "anna", "blue", ""), auth.IssueOptions{}); err != nil {
		t.Errorf("after its credentials expired, the holder gets new ones: %v", err)
	}
	_, err = a.Issue(someone(rights.User, "otto", "blue", ""), auth.IssueOptions{Life: -time.Second})
	if protocol.AsError(err).Field != "expires" {
		t.Errorf("a negative life: got %v", err)
	}
}

func TestRevokedCredentialsAreRefusedAndTheirConnectionsEnd(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	anna, otto := someone(rights.User, "anna", "blue", ""), someone(rights.User, "otto", "blue", "")
	first, other := issue(t, a, anna), issue(t, a, otto)
	nc, stays := dial(t, s, first), dial(t, s, other)
	if _, err := a.Issue(anna, auth.IssueOptions{}); protocol.CodeOf(err) != protocol.AlreadyExists {
		t.Errorf("a second issue: got %v", err)
	}
	second, err := a.Issue(anna, auth.IssueOptions{Again: true})
	if err != nil {
		t.Fatal(err)
	}
	one := anna
	one.Key = first.Key
	if revoked, err := a.Revoke(one); err != nil || len(revoked) != 1 || revoked[0].Key != first.Key {
		t.Fatalf("revoked %+v: %v", revoked, err)
	}
	if !accepts(s, first) {
		t.Error("the server refuses revoked credentials before the push")
	}
	push(t, a, s)
	eventually.Holds(t, 10*time.Second, "the connection ends", nc.IsClosed)
	if accepts(s, first) || !accepts(s, second) || !accepts(s, other) || !stays.IsConnected() {
		t.Error("the server must refuse the revoked credentials, and no others")
	}
	if revoked, err := a.Revoke(anna); err != nil || len(revoked) != 1 || revoked[0].Key != second.Key {
		t.Fatalf("revoked %+v: %v", revoked, err)
	}
	if revoked, err := a.Revoke(anna); err != nil || len(revoked) != 0 {
		t.Errorf("revoked again: %+v, %v", revoked, err)
	}
	push(t, a, s)
	waitRefused(t, s, second)
	if _, err := a.Revoke(someone(rights.User, "nobody", "blue", "")); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("got %v, want not_found", err)
	}
	if !accepts(s, issue(t, a, anna)) {
		t.Error("new credentials of the same holder are refused")
	}
}

func TestAServerWithoutStoredAccountsTakesARevocationByAReload(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, trust(t, a).MemoryConfig())
	c := issue(t, a, someone(rights.Operator, "anna", "", ""))
	nc := dial(t, s, c)
	if _, err := a.Revoke(c.Identity()); err != nil {
		t.Fatal(err)
	}
	s.reload(t, trust(t, a).MemoryConfig())
	eventually.Holds(t, 10*time.Second, "the connection ends", nc.IsClosed)
	waitRefused(t, s, c)
}

func TestARestartWithTheOldConfigurationKeepsARevocation(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	part, err := trust(t, a).Config(filepath.Join(t.TempDir(), "accounts"))
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, part)
	c := issue(t, a, someone(rights.User, "anna", "blue", ""))
	if _, err := a.Revoke(c.Identity()); err != nil {
		t.Fatal(err)
	}
	push(t, a, s)
	s.Shutdown()
	s.WaitForShutdown()
	again := startServer(t, part) // the accounts in the text do not list the revocation
	if accepts(again, c) {
		t.Error("the server accepts revoked credentials after its restart")
	}
	if !accepts(again, issue(t, a, someone(rights.User, "otto", "blue", ""))) {
		t.Error("the server refuses valid credentials after its restart")
	}
}

func TestOldCredentialsWorkUntilTheOverlapOfARotationEnds(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	id := someone(rights.Worker, "w1", "", "HOSTA")
	old, user := issue(t, a, id), issue(t, a, someone(rights.User, "anna", "blue", ""))
	const overlap = 5 * time.Second
	r, err := a.Rotate(rights.Worker, overlap)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Replace) != 1 || r.Replace[0].Key != old.Key || r.Old.Key == r.New.Key {
		t.Errorf("got %+v", r)
	}
	push(t, a, s)
	nc := dial(t, s, old)
	renewed, err := a.Issue(id, auth.IssueOptions{Again: true})
	if err != nil {
		t.Fatal(err)
	}
	if renewed.Signer != r.New.Key || !accepts(s, renewed) {
		t.Error("the new key must sign new credentials, and the server must accept them")
	}
	eventually.Holds(t, 30*time.Second, "the old credentials are refused after the overlap", func() bool {
		before := time.Now()
		push(t, a, s)
		accepted := accepts(s, old)
		if !accepted && time.Now().Before(r.Old.AcceptedUntil) || accepted && before.After(r.Old.AcceptedUntil) {
			t.Fatalf("accepted is %v at %v, and the overlap ends at %v", accepted, before, r.Old.AcceptedUntil)
		}
		return !accepted
	})
	eventually.Holds(t, 10*time.Second, "the connection with old credentials ends", nc.IsClosed)
	if !accepts(s, renewed) || !accepts(s, user) {
		t.Error("the end of the overlap must end only the old credentials of this role")
	}
	all, err := a.Find(id)
	if err != nil || len(all) != 2 || all[0].Status(time.Now()) != "retired" || all[1].Status(time.Now()) != "valid" {
		t.Errorf("got %+v, %v", all, err)
	}
	if keys, err := a.SigningKeys(); err != nil || len(keys) != len(rights.Roles()) {
		t.Errorf("got %+v, %v", keys, err)
	}
}

func TestARotationWithoutOverlapEndsOldCredentialsAtOnce(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	c := issue(t, a, someone(rights.Viewer, "anna", "blue", ""))
	if _, err := a.Rotate(rights.Viewer, 0); err != nil {
		t.Fatal(err)
	}
	push(t, a, s)
	if accepts(s, c) {
		t.Error("the server accepts credentials of a removed key")
	}
	for field, rotate := range map[string]func() error{
		"role":    func() error { _, err := a.Rotate("root", 0); return err },
		"overlap": func() error { _, err := a.Rotate(rights.User, -1); return err },
	} {
		if err := rotate(); protocol.AsError(err).Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestNamesInATenantAndNamesOutsideAreUnique(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	issue(t, a, someone(rights.User, "anna", "blue", ""))
	issue(t, a, someone(rights.Worker, "w1", "", "HOSTA"))
	issue(t, a, someone(rights.Viewer, "anna", "green", ""))
	issue(t, a, someone(rights.Operator, "anna", "", ""))
	for field, ids := range map[string][]rights.Identity{
		"name": {someone(rights.Viewer, "anna", "blue", ""), someone(rights.Coordinator, "w1", "", ""),
			someone(rights.FleetViewer, "anna", "", ""), someone(rights.Worker, "w1", "", "HOSTA")},
		"host": {someone(rights.Worker, "w1", "", "HOSTB")},
	} {
		for _, id := range ids {
			_, err := a.Issue(id, auth.IssueOptions{})
			if e := protocol.AsError(err); e == nil || e.Code != protocol.AlreadyExists || e.Field != field {
				t.Errorf("%+v: got %v", id, err)
			}
		}
	}
}

func TestAnExistingAuthorityIsReplacedOnRequestOnly(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	first, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	operator := trust(t, first).Operator
	if _, err := auth.Init(dir, false); protocol.CodeOf(err) != protocol.AlreadyExists {
		t.Errorf("got %v", err)
	}
	again, err := auth.Open(dir)
	if err != nil || trust(t, again).Operator != operator {
		t.Errorf("the authority has changed: %v", err)
	}
	second, err := auth.Init(dir, true)
	if err != nil || trust(t, second).Operator == operator {
		t.Errorf("the authority was not replaced: %v", err)
	}
	replaced, err := os.ReadFile(filepath.Join(dir, "authority.replaced.json"))
	if err != nil || !strings.Contains(string(replaced), operator) {
		t.Errorf("the replaced authority is gone: %v", err)
	}
	if _, err := auth.Open(filepath.Join(dir, "nothing")); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("got %v", err)
	}
	if _, err := auth.Open(""); protocol.AsError(err).Field != "dir" {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheOwnerReadsAnAuthority(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	a, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	issue(t, a, someone(rights.Operator, "anna", "", ""))
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"open": func() error { _, err := auth.Open(dir); return err }(),
		"init": func() error { _, err := auth.Init(dir, true); return err }(),
	} {
		if protocol.CodeOf(err) != protocol.FailedPrecondition || !strings.Contains(err.Error(), "chmod 700") {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestNoIssueIsLostAmongManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	if _, err := auth.Init(dir, false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			a, err := auth.Open(dir)
			if err == nil {
				_, err = a.Issue(someone(rights.User, "u"+string(rune('a'+i)), "blue", ""), auth.IssueOptions{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	a, err := auth.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := a.List(); err != nil || len(all) != 20 {
		t.Errorf("%d are listed: %v", len(all), err)
	}
}

func TestAPushSaysWhyNoServerTookIt(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, trust(t, a).MemoryConfig()) // this server stores no accounts
	credentials, err := a.SystemCredentials()
	if err != nil {
		t.Fatal(err)
	}
	system, err := jetstream.ConnectSystem(t.Context(), s.ClientURL(), jetstream.TLS{}, credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if servers, err := a.Push(ctx, system); protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("pushed to %q: %v", servers, err)
	}
	user := issue(t, a, someone(rights.Operator, "anna", "", ""))
	if c := dial(t, s, user); c.mayPublish(t, "$SYS.REQ.CLAIMS.UPDATE") {
		t.Error("an operator of Boxfleet can change accounts")
	}
	other, err := auth.Init(filepath.Join(t.TempDir(), "b"), false)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.SystemCredentials()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jetstream.ConnectSystem(t.Context(), s.ClientURL(), jetstream.TLS{}, foreign); protocol.CodeOf(err) !=
		protocol.PermissionDenied {
		t.Errorf("credentials of another operator: got %v", err)
	}
}

func TestAnOldCopyOfAnAuthorityIsNotPushed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	a, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	part, err := trust(t, a).Config(filepath.Join(t.TempDir(), "accounts"))
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, part)
	anna, otto := someone(rights.User, "anna", "blue", ""), someone(rights.User, "otto", "blue", "")
	first := issue(t, a, anna)
	issue(t, a, otto)
	backup := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(backup, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Revoke(anna); err != nil {
		t.Fatal(err)
	}
	push(t, a, s)

	old, err := auth.Open(backup)
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := old.SystemCredentials()
	if err != nil {
		t.Fatal(err)
	}
	system, err := jetstream.ConnectSystem(t.Context(), s.ClientURL(), jetstream.TLS{}, credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	for _, change := range []func() error{
		func() error { return nil },
		func() error { _, err := old.Revoke(otto); return err }, // now the copy's version is the newer one
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, err := old.Push(t.Context(), system)
		if protocol.CodeOf(err) != protocol.FailedPrecondition || !strings.Contains(err.Error(), "an old copy") ||
			!strings.Contains(err.Error(), "user anna") {
			t.Errorf("the push of an old copy: %v", err)
		}
		if accepts(s, first) {
			t.Fatal("revoked credentials are accepted again")
		}
	}
	if _, err := old.Revoke(anna); err != nil {
		t.Fatal(err)
	}
	push(t, old, s)
}
