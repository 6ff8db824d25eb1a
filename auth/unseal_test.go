package auth_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/seal"
)

func TestAWorkerGetsTheValuesOfTheSpecsThatItRuns(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	if n := v.set("db", "first"); n != 1 {
		t.Errorf("the first version is %d", n)
	}
	if n := v.set("db", "second"); n != 2 {
		t.Errorf("the second version is %d", n)
	}
	v.assigned("s1", protocol.SandboxSpec{
		SensitiveEnv:     map[string]protocol.Sealed{"TOKEN": v.sealed(seal.Variable("blue", "TOKEN"), "of a variable")},
		Secrets:          []protocol.SecretUse{{Name: "db"}, {Name: "db", Version: 1, Env: "DB"}},
		RequiredServices: protocol.Services{"web": {Image: "i", Secrets: []protocol.SecretUse{{Name: "db"}}}},
	})
	ask := protocol.UnsealQuery{Sandbox: "s1", Generation: 1}
	for field, want := range map[string]struct {
		value   string
		version uint64
	}{
		"secrets[0]": {"second", 2}, "secrets[1]": {"first", 1}, "sensitive_env.TOKEN": {"of a variable", 0},
		"required_services.web.secrets[0]": {"second", 2},
	} {
		ask.Field = field
		v.wantValue(v.w1, ask, want.value, want.version)
	}
	v.ready("s1")
	v.append("s1", protocol.Event{Kind: protocol.ExecAccepted, Request: "rx", Exec: &protocol.ExecDetails{ID: "x1",
		Spec: &protocol.ExecSpec{Command: []string{"true"}, Secrets: []protocol.SecretUse{{Name: "db"}}}}})
	ask.Exec, ask.Field = "x1", "secrets[0]"
	v.wantValue(v.w1, ask, "second", 2)
	if refused := v.w1.refusals(t); len(refused) > 0 {
		t.Errorf("the server refuses the worker %q", refused)
	}
}

func TestAWorkerGetsNoValueThatItsHostDoesNotRun(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.set("db", "value")
	spec := protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db"}}}
	v.assigned("s1", spec)
	ask := protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"}
	v.wantValue(v.w1, ask, "value", 1)
	refused := func(what string, c *roleConn, q protocol.UnsealQuery, code protocol.Code, reason string) {
		t.Helper()
		_, err := v.unseal(c, q)
		wantCode(t, what, err, code, reason)
	}
	refused("another worker", v.w2, ask, protocol.PermissionDenied, "")
	next := ask
	next.Generation = 2
	refused("a generation that does not exist yet", v.w1, next, protocol.PermissionDenied, "")
	unknown := ask
	unknown.Field = "secrets[1]"
	refused("a field that the spec does not have", v.w1, unknown, protocol.NotFound, "")
	unknown = ask
	unknown.Exec = "x9"
	refused("an exec that does not exist", v.w1, unknown, protocol.NotFound, "")
	unknown = ask
	unknown.Sandbox = "s9"
	refused("a sandbox that does not exist", v.w1, unknown, protocol.NotFound, "")

	v.ready("s1")
	v.append("s1", protocol.Event{Kind: protocol.ExecAccepted, Request: "rx", Exec: &protocol.ExecDetails{ID: "x1",
		Spec: &protocol.ExecSpec{Command: []string{"true"}, Secrets: []protocol.SecretUse{{Name: "db"}}}}})
	v.appendAs(v.w1, "w1", "s1", protocol.Event{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: "x1"}})
	ended := ask
	ended.Exec = "x1"
	refused("an exec that has ended", v.w1, ended, protocol.FailedPrecondition, protocol.ReasonExecTerminal)
	v.appendAs(v.w1, "w1", "s1", protocol.Event{Kind: protocol.SandboxFailed,
		Error: &protocol.Error{Code: protocol.Internal}})
	refused("a sandbox that has failed", v.w1, ask, protocol.FailedPrecondition, protocol.ReasonInvalidState)

	if err := v.blue.RemoveSecret(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	v.assigned("s2", spec)
	ask.Sandbox = "s2"
	refused("a secret that was removed", v.w1, ask, protocol.NotFound, protocol.ReasonSecretMissing)
}

func TestAWorkerWhoseGenerationIsOverGetsNoValue(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.set("db", "value")
	spec := protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db"}}, OnHostLoss: protocol.OnHostLossReplace}
	v.assigned("s1", spec)
	ask := protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"}
	v.ready("s1")
	v.wantValue(v.w1, ask, "value", 1)
	v.append("s1", protocol.Event{Kind: protocol.SandboxReplaced, Reason: protocol.ReasonHostLost},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w2", HostID: "HOSTB", Generation: 2}})
	_, err := v.unseal(v.w1, ask)
	wantCode(t, "the old worker", err, protocol.PermissionDenied, "")
	ask.Generation = 2
	_, err = v.unseal(v.w1, ask)
	wantCode(t, "the old worker with the new generation", err, protocol.PermissionDenied, "")
	v.wantValue(v.w2, ask, "value", 1)

	// A worker that joins after the set opens the value as well.
	w3 := v.writer(rights.Worker, protocol.OwnerWorker, "w3", "HOSTC")
	v.appendAs(v.w2, "w2", "s1", protocol.Event{Kind: protocol.SandboxReady,
		Details: &protocol.SandboxDetails{Boot: "b"}})
	v.append("s1", protocol.Event{Kind: protocol.SandboxReplaced, Reason: protocol.ReasonHostLost},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w3", HostID: "HOSTC", Generation: 3}})
	ask.Generation = 3
	v.wantValue(w3, ask, "value", 1)
}

// TestAnotherWorkerCannotAskInANameThatIsNotItsOwn sends questions past Boxfleet's own code, with the credentials of
// the worker w2.
func TestAnotherWorkerCannotAskInANameThatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.set("db", "value")
	v.assigned("s1", protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db"}}})
	again, err := v.authority.Issue(someone(rights.Worker, "w2", "", "HOSTB"), auth.IssueOptions{Again: true})
	if err != nil {
		t.Fatal(err)
	}
	rogue := dial(t, v.server, again)
	own, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	q := &protocol.UnsealQuery{Version: protocol.Version, Tenant: "blue", Sandbox: "s1", Generation: 1,
		Field: "secrets[0]", Key: own.Public(), Signature: make([]byte, 64)}
	answers := 0
	for _, subject := range []string{
		protocol.UnsealSubject("w1", "HOSTA", again.Key), protocol.UnsealSubject("w2", "HOSTA", again.Key),
		protocol.UnsealSubject("w2", "HOSTB", again.Key),
	} {
		m := nats.NewMsg(subject)
		m.Data, m.Reply = protocol.Encode(q), "_INBOX.@w2.answer"
		sub, err := rogue.SubscribeSync(m.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := rogue.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		if answer, err := sub.NextMsg(2 * time.Second); err == nil {
			answers++
			reply := &protocol.UnsealReply{}
			if err := protocol.Decode(answer.Data, reply); err != nil {
				t.Fatal(err)
			}
			wantCode(t, subject, reply.Error, protocol.PermissionDenied, protocol.ReasonNotProven)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	if answers != 1 {
		t.Errorf("%d questions were answered: only the one with its own name, host and key passes the server", answers)
	}
}

// TestAQuestionNeedsTheSignatureOfItsWorker sends questions past Boxfleet's own code, with the credentials of the
// worker that runs the sandbox.
func TestAQuestionNeedsTheSignatureOfItsWorker(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	v.set("db", "value")
	v.assigned("s1", protocol.SandboxSpec{Secrets: []protocol.SecretUse{{Name: "db"}}})
	raw, err := connect(v.server, nats.UserCredentials(v.w1.creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	text, err := os.ReadFile(v.w1.creds)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	own, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	sub, err := raw.SubscribeSync("_INBOX.@w1.answer")
	if err != nil {
		t.Fatal(err)
	}
	q := protocol.UnsealQuery{Version: protocol.Version, Tenant: "blue", Sandbox: "s1", Generation: 1,
		Field: "secrets[0]", Key: own.Public()}
	deployment := v.decider.Deployment()
	other := q
	other.Key = v.key.Public()
	for what, signed := range map[string]struct {
		text []byte
		want protocol.Code
	}{
		"its own":             {protocol.UnsealText(deployment, &q), ""},
		"another question":    {protocol.UnsealText(deployment, &other), protocol.PermissionDenied},
		"another deployment":  {protocol.UnsealText("other", &q), protocol.PermissionDenied},
		"a text of its login": {[]byte("nonce"), protocol.PermissionDenied},
	} {
		asked := q
		if asked.Signature, err = pair.Sign(signed.text); err != nil {
			t.Fatal(err)
		}
		subject := protocol.UnsealSubject("w1", "HOSTA", public)
		if err := raw.PublishRequest(subject, "_INBOX.@w1.answer", protocol.Encode(&asked)); err != nil {
			t.Fatal(err)
		}
		answer, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		reply := &protocol.UnsealReply{}
		if err := protocol.Decode(answer.Data, reply); err != nil {
			t.Fatal(err)
		}
		got := protocol.Code("")
		if reply.Error != nil {
			got = reply.Error.Code
		}
		if got != signed.want || (len(reply.Sealed) > 0) != (got == "") {
			t.Errorf("signed for %s: want %q, got %+v", what, signed.want, reply)
		}
	}
}

func TestSealedBytesOpenOnlyForTheirTenantAndName(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	data := v.sealed(seal.Secret("blue", "db"), "value")
	_, err := v.blue.SetSecret(ctx, "other", data)
	wantCode(t, "another name", err, protocol.InvalidArgument, protocol.ReasonNotSealedForThis)
	red := v.open(someone(rights.User, "rosa", "red", "")).TenantReads("red")
	_, err = red.SetSecret(ctx, "db", data)
	wantCode(t, "another tenant", err, protocol.InvalidArgument, protocol.ReasonNotSealedForThis)
	_, err = v.blue.SetSecret(ctx, "db", []byte("value"))
	wantCode(t, "bytes that are not sealed", err, protocol.InvalidArgument, protocol.ReasonNotSealedForThis)
	damaged := bytes.Clone(data)
	damaged[len(damaged)-1] ^= 1
	_, err = v.blue.SetSecret(ctx, "db", damaged)
	wantCode(t, "damaged bytes", err, protocol.InvalidArgument, protocol.ReasonNotSealedForThis)

	// Bytes that were put into the bucket under another key do not open either.
	if _, err := v.blue.SetSecret(ctx, "db", data); err != nil {
		t.Fatal(err)
	}
	if _, err := v.decider.PutSecret(ctx, "blue", "moved", protocol.SecretVersion{Version: 1}, data, 0); err != nil {
		t.Fatal(err)
	}
	v.assigned("s1", protocol.SandboxSpec{
		Secrets:      []protocol.SecretUse{{Name: "moved"}},
		SensitiveEnv: map[string]protocol.Sealed{"B": v.sealed(seal.Variable("blue", "A"), "value")},
	})
	for _, field := range []string{"secrets[0]", "sensitive_env.B"} {
		_, err = v.unseal(v.w1, protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: field})
		wantCode(t, field, err, protocol.InvalidArgument, protocol.ReasonNotSealedForThis)
	}
}
