package auth_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/seal"
)

func TestSpecsWithSecretsAreCheckedWhenTheyAreAccepted(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	c := v.client(v.anna)
	if _, err := c.Secrets().Set(ctx, "db", []byte("value")); err != nil {
		t.Fatal(err)
	}
	later := sdk.WithWait(false)
	for want, spec := range map[string]sdk.SandboxSpec{
		"spec.secrets[1]": {Image: "i", Secrets: []sdk.SecretUse{{Name: "db"}, {Name: "no", Env: "A"}}},
		"spec.secrets[0]": {Image: "i", Secrets: []sdk.SecretUse{{Name: "db", Version: 2}}},
		"spec.required_services.web.secrets[0]": {Image: "i", RequiredServices: sdk.Services{
			"web": {Image: "i", Secrets: []sdk.SecretUse{{Name: "no"}}}}},
	} {
		_, err := c.Create(ctx, spec, later)
		wantCode(t, want, err, protocol.FailedPrecondition, protocol.ReasonSecretMissing)
		if e := protocol.AsError(err); e != nil && e.Field != want {
			t.Errorf("want field %s, got %s", want, e.Field)
		}
	}
	moved, err := c.Seal(ctx, "A", "value")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Create(ctx, sdk.SandboxSpec{Image: "i", SensitiveEnv: map[string]sdk.Sealed{"B": moved}}, later)
	wantCode(t, "a value that is sealed for another variable", err, protocol.InvalidArgument,
		protocol.ReasonNotSealedForThis)
	_, err = c.Create(ctx, sdk.SandboxSpec{Image: "i",
		SensitiveEnv: map[string]sdk.Sealed{"B": sdk.Sealed(protocol.Masked)}}, later)
	wantCode(t, "a value that a read showed", err, protocol.InvalidArgument, "")

	masks := sdk.SandboxSpec{Image: "i"}
	for i := range 5 {
		name := fmt.Sprintf("large-%d", i)
		if _, err := c.Secrets().Set(ctx, name, bytes.Repeat([]byte("m"), protocol.MaxSecretValue)); err != nil {
			t.Fatal(err)
		}
		masks.Secrets = append(masks.Secrets, sdk.SecretUse{Name: name, Mask: true})
	}
	_, err = c.Create(ctx, masks, later)
	wantCode(t, "too many bytes to mask", err, protocol.FailedPrecondition, protocol.ReasonTooLarge)
	if e := protocol.AsError(err); e != nil && e.Field != "spec.secrets[4].mask" {
		t.Errorf("too many bytes to mask: the field is %s", e.Field)
	}
	v.assigned("s1", protocol.SandboxSpec{})
	v.ready("s1")
	_, err = c.Sandbox("s1").Start(ctx, sdk.ExecSpec{Command: []string{"true"}, Secrets: []sdk.SecretUse{{Name: "no"}}})
	wantCode(t, "an exec", err, protocol.FailedPrecondition, protocol.ReasonSecretMissing)
	x, err := c.Sandbox("s1").Start(ctx, sdk.ExecSpec{Command: []string{"true"}, Secrets: []sdk.SecretUse{{Name: "db"}}},
		sdk.WithID("x1"), sdk.WithSensitiveEnv(map[string]string{"T": "of the exec"}))
	if err != nil {
		t.Fatal(err)
	}
	ask := protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Exec: x.ID(), Field: "sensitive_env.T"}
	v.wantValue(v.w1, ask, "of the exec", 0)
	if got := string(x.Info().Spec.SensitiveEnv["T"]); got != protocol.Masked {
		t.Errorf("the exec shows %q", got)
	}
}

func TestReadsShowNoSensitiveValue(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	c, viewer := v.client(v.anna), v.client(v.open(someone(rights.Viewer, "vera", "blue", "")))
	document := []byte("image: i\nenv: {A: {sensitive: hunter2}}\n" +
		"optional_services: {db: {image: j, sensitive_env: {B: b}}}")
	create := func(id string, opts ...sdk.CreateOption) *sdk.Sandbox {
		t.Helper()
		b, err := c.Create(ctx, sdk.SandboxSpec{}, append(opts, sdk.WithID(id), sdk.WithYAML(document, nil),
			sdk.WithWait(false))...)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	create("s1", sdk.WithRequestID("r1"))
	create("s1", sdk.WithRequestID("r1")) // sealed again, and still the same request
	check := func(what string, spec *sdk.SandboxSpec) {
		t.Helper()
		if spec == nil || string(spec.SensitiveEnv["A"]) != protocol.Masked ||
			string(spec.OptionalServices["db"].SensitiveEnv["B"]) != protocol.Masked {
			t.Errorf("%s shows %+v", what, spec)
		}
		if text, err := json.Marshal(spec); err != nil || !bytes.Contains(text, []byte(`"sensitive_env":{"A":"***"}`)) {
			t.Errorf("%s is %s in JSON: %v", what, text, err)
		}
	}
	b, err := viewer.Get(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	info := b.Info()
	check("get", &info.Spec)
	all, err := sdk.ReadAll(viewer.List(ctx))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	listed := all[0].Info()
	check("list", &listed.Spec)
	events, err := sdk.ReadAll(b.Events(ctx))
	if err != nil {
		t.Fatal(err)
	}
	check("the events", events[0].Details.Spec)
	page, _, err := b.EventsPage(ctx, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	check("a page of events", page.Events[0].Details.Spec)
	why, err := b.Explain(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check("explain", &why.Sandbox.Spec)
}

// TestNoByteOfAValueIsInNATS looks for values in every file of the server, in every message of every account, in the
// coordinator's log, and in the answers to reads.
func TestNoByteOfAValueIsInNATS(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	ctx := t.Context()
	value, variable := rand.Text()+rand.Text(), rand.Text()+rand.Text()
	v.set("db", value)
	v.assigned("s1", protocol.SandboxSpec{
		SensitiveEnv: map[string]protocol.Sealed{"TOKEN": v.sealed(seal.Variable("blue", "TOKEN"), variable)},
		Secrets:      []protocol.SecretUse{{Name: "db"}},
	})
	ask := protocol.UnsealQuery{Sandbox: "s1", Generation: 1, Field: "secrets[0]"}
	v.wantValue(v.w1, ask, value, 1)
	ask.Field = "sensitive_env.TOKEN"
	v.wantValue(v.w1, ask, variable, 0)
	var reads bytes.Buffer
	for endpoint, q := range map[string]protocol.Query{
		protocol.EndpointSecrets: {}, protocol.EndpointGet: {Sandbox: "s1"}, protocol.EndpointList: {},
		protocol.EndpointEvents: {Sandbox: "s1"}, protocol.EndpointBatches: {Sandbox: "s1"},
		protocol.EndpointExplain: {Sandbox: "s1"},
	} {
		reply, err := v.blue.Query(ctx, endpoint, q)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(&reads).Encode(reply); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(t, 10*time.Second, "the question and the secret pass the wire", func() bool {
		return bytes.Contains(v.wire.Bytes(), []byte("boxfleet.v1.unseal.w1")) &&
			bytes.Contains(v.wire.Bytes(), []byte("boxfleet.v1.secret.blue.anna.db.set"))
	})
	places := map[string][]byte{"the wire": v.wire.Bytes(), "the coordinator's log": v.log.Bytes(),
		"the answers to reads": reads.Bytes()}
	v.addFiles(places)
	if !bytes.Contains(places["the coordinator's log"], []byte("a worker gets a value")) {
		t.Error("the coordinator's log does not say who got a value")
	}
	for _, secret := range []string{value, variable} {
		for form, text := range map[string]string{"in clear": secret, "in hex": hex.EncodeToString([]byte(secret)),
			"in base64": base64.StdEncoding.EncodeToString([]byte(secret))[:40]} {
			for place, content := range places {
				if bytes.Contains(content, []byte(text)) {
					t.Errorf("%s has a value %s", place, form)
				}
			}
		}
	}
}
