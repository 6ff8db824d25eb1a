package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestSensitiveVariablesAreSealedBeforeTheSpecHasThem(t *testing.T) {
	d, err := Parse([]byte(`
image: i
env: {A: plain, B: {sensitive: "${B}"}}
sensitive_env: {C: of c}
required_services:
  db: {image: j, env: {B: {sensitive: of the service}}}
`), Options{Env: map[string]string{"B": "of b"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if text := fmt.Sprintf("%v %+v %s", d.Sensitive, d.Spec, d.YAML(nil)); strings.Contains(text, "of ") {
		t.Errorf("a value is printed: %s", text)
	}
	if err := d.AddSensitive("--sensitive-env", "A", "of a"); err != nil {
		t.Fatal(err)
	}
	d.Override(protocol.SandboxSpec{Env: map[string]string{"C": "plain"}})
	sealed, err := d.Sealed(func(name, value string) (protocol.Sealed, error) {
		return protocol.Sealed("sealed " + name + " " + value), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%q %q %q %q", sealed.Env, sealed.SensitiveEnv, sealed.RequiredServices["db"].Env,
		sealed.RequiredServices["db"].SensitiveEnv)
	want := `map["C":"plain"] map["A":"sealed A of a" "B":"sealed B of b"] map[] map["B":"sealed B of the service"]`
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestErrorsAboutSensitiveVariablesDoNotShowTheirValues(t *testing.T) {
	for text, want := range map[string]string{
		"sensitive_env: hunter2":                          "spec.sensitive_env",
		"sensitive_env: {A: [hunter2]}":                   "spec.sensitive_env.A",
		"sensitive_env: [A=hunter2]":                      "spec.sensitive_env",
		"env: {A: {sensitive: [hunter2]}}":                "spec.env.A.sensitive",
		"env: {A: {sensitive: hunter2, b: c}}":            "spec.env.A",
		"env: {A: {secret: hunter2}}":                     "spec.env.A",
		"sensitive_env: {A: \"hunter2\\0\"}":              "spec.sensitive_env.A",
		"sensitive_env: {1: hunter2}":                     "spec.sensitive_env.1",
		"env: {A: b}\nsensitive_env: {A: hunter2}":        "spec.sensitive_env.A",
		"env: {A: {sensitive: \"***\"}}":                  "spec.env.A.sensitive",
		"secrets: [{name: a, env: A}, {name: b, env: A}]": "spec.secrets[1].env",
	} {
		d, err := Parse([]byte("image: i\n"+text), Options{})
		if err == nil {
			err = d.Validate()
		}
		if e := protocol.AsError(err); e == nil || e.Field != want || strings.Contains(e.Message, "hunter2") {
			t.Errorf("%q: want an error with field %s and without the value, got %v", text, want, err)
		}
	}
	_, err := ParseDefaults([]byte("'*': {sensitive_env: {A: hunter2}}"), Options{})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a sensitive default: %v", err)
	}
}

func TestShortFormsOfSecrets(t *testing.T) {
	for text, want := range map[string]protocol.SecretUse{
		"db":                              {Name: "db"},
		"db,file=a/b,mask":                {Name: "db", File: "a/b", Mask: true},
		"db,env=DB,version=3":             {Name: "db", Env: "DB", Version: 3},
		"db,version=0":                    {},
		"db,mask=1":                       {},
		"db,env=":                         {},
		"db,env=A,env=B":                  {},
		",env=A":                          {},
		"db,version=99999999999999999999": {},
	} {
		got, err := ParseSecret(text)
		if got != want || (err == nil) != (want.Name != "") {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
}
