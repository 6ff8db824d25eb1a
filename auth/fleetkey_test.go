package auth_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/seal"
)

func TestACoordinatorWithoutTheKeyRefusesWithTheReason(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	v := &vault{t: t, authority: a, server: s, log: &eventually.Buffer{}}
	v.coordinator("c1", nil)
	anna := v.open(someone(rights.User, "anna", "blue", "")).TenantReads("blue")
	_, err := anna.FleetKey(t.Context())
	wantCode(t, "ask for the key", err, protocol.FailedPrecondition, protocol.ReasonNoFleetKey)
	_, err = anna.SetSecret(t.Context(), "db", []byte("x"))
	wantCode(t, "set a secret", err, protocol.FailedPrecondition, protocol.ReasonNoFleetKey)
}

func TestAReplacedFleetKeyStillOpensOldSecrets(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	v := &vault{t: t, authority: a, server: s, log: &eventually.Buffer{}}
	var keys seal.Keys
	for range 2 {
		k, err := seal.New()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	end := v.coordinator("c1", seal.Keys{keys[0]})
	v.decider = v.writer(rights.Coordinator, protocol.OwnerCoordinator, "d1", "")
	v.w1 = v.writer(rights.Worker, protocol.OwnerWorker, "w1", "HOSTA")
	v.blue = v.open(someone(rights.User, "anna", "blue", "")).TenantReads("blue")
	v.set("old", "old value")
	end()
	v.coordinator("c2", seal.Keys{keys[1], keys[0]})
	v.set("new", "new value")
	for name, key := range map[string]*seal.Key{"old": keys[0], "new": keys[1]} {
		if got := v.list(name); len(got) != 1 || got[0].Key != key.Public() {
			t.Errorf("secret %s is listed as %+v", name, got)
		}
	}
	v.assigned("s1", protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "old"}, {Name: "new"}}})
	v.wantValue(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"}, "old value", 1)
	v.wantValue(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[1]"}, "new value", 1)
}

// keyTries is how often a test asks when the server chooses the coordinator that answers.
const keyTries = 20

// Each question goes to one coordinator, and so only those with the key take questions that need it.
func TestACoordinatorWithoutTheKeyLeavesSecretsToTheOthers(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.coordinator("c2", nil)
	ctx, c := t.Context(), v.client(v.anna)
	once, err := nats.Connect(v.server.ClientURL(), nats.UserCredentials(v.anna.creds),
		nats.CustomInboxPrefix(protocol.Inbox("blue", "anna")))
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	for i := range keyTries {
		// The client asks again if a coordinator without the key answers, so ask without the client too.
		if _, err := v.anna.Query(ctx, "blue", protocol.EndpointFleetKey, &protocol.Query{}); err != nil {
			t.Fatalf("the key: %v", err)
		}
		m := nats.NewMsg(protocol.SecretSubject("blue", "anna", "none", protocol.SecretRemove))
		m.Data = protocol.Encode(&protocol.SecretRequest{Version: protocol.Version})
		answer, err := once.RequestMsg(m, 10*time.Second)
		reply := &protocol.Reply{}
		if err == nil {
			err = protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply)
		}
		if err != nil || reply.Error == nil || reply.Error.Reason != protocol.ReasonSecretMissing {
			t.Fatalf("remove a secret that does not exist: %v, %+v", err, reply.Error)
		}
		if _, err := c.Secrets().Set(ctx, "db", fmt.Appendf(nil, "value %d", i)); err != nil {
			t.Fatalf("set version %d: %v", i+1, err)
		}
		spec := sdk.SandboxSpec{Image: "i", Secrets: []sdk.SecretUse{{Name: "db"}}}
		if _, err := c.Create(ctx, spec, sdk.WithWait(false),
			sdk.WithSensitiveEnv(map[string]string{"TOKEN": "abc"})); err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	v.assigned("s1", sdk.SandboxSpec{Secrets: []sdk.SecretUse{{Name: "db"}}})
	for range keyTries {
		v.wantValue(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"},
			fmt.Sprintf("value %d", keyTries-1), keyTries)
	}
	olga := v.open(someone(rights.Operator, "olga", "", ""))
	all, err := olga.Coordinators(ctx)
	keys := map[string]string{}
	for _, c := range all {
		keys[c.Name] = c.FleetKey
	}
	if want := map[string]string{"c1": v.key.Public(), "c2": protocol.NoFleetKey}; err != nil || !maps.Equal(keys, want) {
		t.Errorf("the coordinators say that they have the keys %v, want %v: %v", keys, want, err)
	}
}

// While an operator replaces the key, the coordinator that opens a value is not always the one that gave the key.
func TestSecretsAreSetWhileOnlyOneCoordinatorHasTheNewKey(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	key, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	v.coordinator("c2", seal.Keys{key, v.key})
	ctx, c := t.Context(), v.client(v.anna)
	seen := map[string]bool{}
	for i := range keyTries {
		if _, err := c.Secrets().Set(ctx, "db", fmt.Appendf(nil, "value %d", i)); err != nil {
			t.Fatalf("set version %d: %v", i+1, err)
		}
		spec := sdk.SandboxSpec{Image: "i", Secrets: []sdk.SecretUse{{Name: "db"}}}
		if _, err := c.Create(ctx, spec, sdk.WithWait(false),
			sdk.WithSensitiveEnv(map[string]string{"TOKEN": "abc"})); err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	for _, version := range v.list("db") {
		seen[version.Key] = true
	}
	if len(seen) != 2 {
		t.Errorf("clients sealed to %d keys, want both: the test shows nothing otherwise", len(seen))
	}
	v.assigned("s1", sdk.SandboxSpec{Secrets: []sdk.SecretUse{{Name: "db"}}})
	for range keyTries {
		v.wantValue(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"},
			fmt.Sprintf("value %d", keyTries-1), keyTries)
	}
}

// An operator must know what still needs a replaced key before they remove it, and which key is missing afterwards.
func TestTheCheckupCountsWhatNeedsAReplacedKey(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	earlier := v.key
	v.set("db", "first")
	v.assigned("s1", protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db"}},
		SensitiveEnv: map[string]protocol.Sealed{"TOKEN": v.sealed(seal.Variable("blue", "TOKEN"), "abc"),
			"OTHER": v.sealed(seal.Variable("blue", "OTHER"), "def")}})
	v.end()
	key, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	end := v.coordinator("c2", seal.Keys{key, earlier})
	v.set("db", "second")
	v.wantSealed(protocol.SealedTo{Key: earlier.Public(), Versions: 1, Sandboxes: 1})
	end()
	v.coordinator("c3", seal.Keys{key})
	v.wantSealed(protocol.SealedTo{Key: earlier.Public(), Missing: true, Versions: 1, Sandboxes: 1})
	if err := v.blue.RemoveSecret(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	v.wantSealed(protocol.SealedTo{Key: earlier.Public(), Missing: true, Sandboxes: 1})
	other := v.open(someone(rights.User, "otto", "red", ""))
	reply, err := other.Query(t.Context(), "red", protocol.EndpointCheckup, &protocol.Query{})
	if err != nil || len(reply.Checkup.Sealed) != 0 {
		t.Errorf("a user of another tenant sees %+v, %v", reply, err)
	}
}

// wantSealed waits until a checkup says what is sealed to other keys.
func (v *vault) wantSealed(want ...protocol.SealedTo) {
	v.t.Helper()
	var got []protocol.SealedTo
	eventually.Holds(v.t, 10*time.Second, "the checkup says what is sealed", func() bool {
		reply, err := v.anna.Query(v.t.Context(), "blue", protocol.EndpointCheckup, &protocol.Query{})
		if err != nil {
			return false
		}
		got = reply.Checkup.Sealed
		return slices.Equal(got, want)
	})
}
