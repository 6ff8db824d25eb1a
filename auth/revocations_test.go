package auth_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// revokeMany adds revoked credentials to an authority, as copies of the credentials that it issued last.
func revokeMany(t *testing.T, dir string, n int, with map[string]any) {
	t.Helper()
	file := filepath.Join(dir, "authority.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	issued := state["issued"].([]any)
	last := issued[len(issued)-1].(map[string]any)
	for i := range n {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		c := maps.Clone(last)
		if c["key"], err = pair.PublicKey(); err != nil {
			t.Fatal(err)
		}
		c["name"], c["revoked"] = fmt.Sprint("u", i), time.Now().UTC()
		maps.Copy(c, with)
		issued = append(issued, c)
	}
	state["issued"] = issued
	if text, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// tooMany is more revocations than an account can have.
const tooMany = 12_000

func TestAnAuthorityStaysUsableWithTooManyRevocations(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	a, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, trust(t, a).MemoryConfig())
	issue(t, a, someone(rights.User, "anna", "blue", ""))
	revokeMany(t, dir, tooMany, nil)
	for range 2 {
		_, err := a.Revoke(someone(rights.User, "anna", "blue", ""))
		if protocol.CodeOf(err) != protocol.ResourceExhausted || !strings.Contains(err.Error(), "auth rotate ROLE") {
			t.Fatalf("one revocation more: got %v", err)
		}
	}
	if _, err := a.Rotate(rights.User, 0); err != nil {
		t.Fatal(err)
	}
	c := issue(t, a, someone(rights.User, "anna", "blue", ""))
	s.reload(t, trust(t, a).MemoryConfig())
	if !accepts(s, c) {
		t.Error("the server refuses credentials of the new signing key")
	}
}

func TestCredentialsThatExpiredLongAgoNeedNoRevocation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	a, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	issue(t, a, someone(rights.User, "anna", "blue", ""))
	revokeMany(t, dir, tooMany, map[string]any{"expires": time.Now().Add(-48 * time.Hour).UTC()})
	issue(t, a, someone(rights.User, "otto", "blue", ""))
	issue(t, a, someone(rights.User, "bert", "blue", ""))
	if all, err := a.List(); err != nil || len(all) != tooMany+3 {
		t.Errorf("%d credentials are listed, %v", len(all), err)
	}
}

func TestAChangeDoesNotWaitForAClockThatIsFarBehind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	a, err := auth.Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	anna := someone(rights.User, "anna", "blue", "")
	issue(t, a, anna)
	synctest.Test(t, func(t *testing.T) { // the clock of a synctest bubble begins in the year 2000
		if _, err := a.Revoke(anna); protocol.CodeOf(err) != protocol.FailedPrecondition ||
			!strings.Contains(err.Error(), "set the clock") {
			t.Errorf("got %v", err)
		}
	})
	if revoked, err := a.Revoke(anna); err != nil || len(revoked) != 1 {
		t.Errorf("with the right clock: got %+v, %v", revoked, err)
	}
}
