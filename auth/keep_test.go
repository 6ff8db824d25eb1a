package auth_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// kept calls Keep and returns the identity in the file.
func kept(t *testing.T, a *auth.Authority, id rights.Identity, file string, wantMade bool) rights.Identity {
	t.Helper()
	made, err := a.Keep(id, file, auth.IssueOptions{})
	if err != nil || made != wantMade {
		t.Fatalf("made: %v, %v; want %v", made, err, wantMade)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	has, ok := rights.FromCredentials(text)
	if has.Key = ""; !ok || has != id {
		t.Fatalf("the file has credentials of %+v, %v; want %+v", has, ok, id)
	}
	return has
}

func valid(t *testing.T, a *auth.Authority) (valid []rights.Identity) {
	t.Helper()
	all, err := a.List()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if id := all[i].Identity(); all[i].Status(time.Now()) == "valid" {
			id.Key = ""
			valid = append(valid, id)
		}
	}
	return valid
}

func TestAProcessKeepsItsCredentialsAsLongAsServersAcceptThem(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "creds")
	w1 := rights.Identity{Role: rights.Worker, Name: "w1", Host: "HOSTA"}
	kept(t, a, w1, file, true)
	kept(t, a, w1, file, false)
	w1.Host = "HOSTB"
	kept(t, a, w1, file, true)
	if got := valid(t, a); len(got) != 1 || got[0] != w1 {
		t.Errorf("after a change of the host, these are valid: %+v", got)
	}
	w1.Name = "w2"
	kept(t, a, w1, file, true)
	if got := valid(t, a); len(got) != 1 || got[0] != w1 {
		t.Errorf("after a change of the name, these are valid: %+v", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	kept(t, a, w1, file, true)
	if got := valid(t, a); len(got) != 1 {
		t.Errorf("after the loss of the file, these are valid: %+v", got)
	}
	if _, err := a.Revoke(w1); err != nil {
		t.Fatal(err)
	}
	kept(t, a, w1, file, true)
	if _, err := a.Rotate(rights.Worker, time.Hour); err != nil {
		t.Fatal(err)
	}
	kept(t, a, w1, file, true)
	kept(t, a, w1, file, false)
}

func TestADamagedFileOfCredentialsIsNotReplaced(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	id := rights.Identity{Role: rights.Coordinator, Name: "c1"}
	other := issue(t, a, rights.Identity{Role: rights.Coordinator, Name: "c2"})
	c := issue(t, a, id)
	mixed := append(bytes.Clone(c.Text[:bytes.Index(c.Text, []byte("----BEGIN USER"))]),
		other.Text[bytes.Index(other.Text, []byte("----BEGIN USER")):]...)
	for name, text := range map[string]string{
		"empty": "", "cut": string(c.Text[:len(c.Text)/2]), "of two files": string(mixed),
	} {
		file := filepath.Join(t.TempDir(), "creds")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := a.Keep(id, file, auth.IssueOptions{})
		after, readErr := os.ReadFile(file)
		if protocol.CodeOf(err) != protocol.FailedPrecondition || readErr != nil || string(after) != text {
			t.Errorf("%s: got %v, %v", name, err, readErr)
		}
	}
}
