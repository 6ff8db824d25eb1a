package protocol

import (
	"fmt"
	"strings"
	"testing"
)

func TestP9_InvalidSecretsAreRejectedByField(t *testing.T) {
	type S = SandboxSpec
	use := func(uses ...SecretUse) func(*S) { return func(s *S) { s.Secrets = uses } }
	file := func(p string) func(*S) { return use(SecretUse{Name: "a", File: p}) }
	sensitive := func(name string, value Sealed) func(*S) {
		return func(s *S) { s.SensitiveEnv = map[string]Sealed{name: value} }
	}
	checkRefused(t, goodSandbox, (*S).Validate, []refused[S]{
		{"no name", use(SecretUse{}), "spec.secrets[0].name"},
		{"name with a dot", use(SecretUse{Name: "a.b"}), "spec.secrets[0].name"},
		{"too many", use(make([]SecretUse, MaxSecretUses+1)...), "spec.secrets"},
		{"file absolute", file("/a"), "spec.secrets[0].file"},
		{"file above", file("../a"), "spec.secrets[0].file"},
		{"file above, later", file("a/../../b"), "spec.secrets[0].file"},
		{"file not clean", file("a//b"), "spec.secrets[0].file"},
		{"file a directory", file("a/"), "spec.secrets[0].file"},
		{"file a dot", file("."), "spec.secrets[0].file"},
		{"file with NUL", file("a\x00"), "spec.secrets[0].file"},
		{"file with a long part", file(strings.Repeat("a", 256)), "spec.secrets[0].file"},
		{"file too long", file(strings.Repeat("a/", 600) + "a"), "spec.secrets[0].file"},
		{"same file", use(SecretUse{Name: "a"}, SecretUse{Name: "b", File: "a"}), "spec.secrets[1].file"},
		{"file below a file", use(SecretUse{Name: "a"}, SecretUse{Name: "b", File: "a/b"}), "spec.secrets[1].file"},
		{"file above a file", use(SecretUse{Name: "a", File: "b/c"}, SecretUse{Name: "b"}), "spec.secrets[1].file"},
		{"file and variable", use(SecretUse{Name: "a", File: "b", Env: "C"}), "spec.secrets[0].env"},
		{"variable with a dash", use(SecretUse{Name: "a", Env: "A-B"}), "spec.secrets[0].env"},
		{"same variable", use(SecretUse{Name: "a", Env: "A"}, SecretUse{Name: "b", Env: "A"}), "spec.secrets[1].env"},
		{"variable of env", func(s *S) {
			s.Env, s.Secrets = map[string]string{"A": "1"}, []SecretUse{{Name: "a", Env: "A"}}
		}, "spec.secrets[0].env"},
		{"variable of sensitive_env", func(s *S) {
			s.SensitiveEnv, s.Secrets = map[string]Sealed{"A": {1}}, []SecretUse{{Name: "a", Env: "A"}}
		}, "spec.secrets[0].env"},
		{"sensitive variable of env", func(s *S) {
			s.Env, s.SensitiveEnv = map[string]string{"A": "1"}, map[string]Sealed{"A": {1}}
		}, "spec.sensitive_env.A"},
		{"sensitive variable with a dash", sensitive("A-B", Sealed{1}), "spec.sensitive_env.A-B"},
		{"sensitive variable without a value", sensitive("A", nil), "spec.sensitive_env.A"},
		{"sensitive variable too long", sensitive("A", make(Sealed, MaxSealedValue+1)), "spec.sensitive_env.A"},
		{"mount in the directory of secrets", func(s *S) {
			s.Secrets, s.Mounts = []SecretUse{{Name: "a"}}, []Mount{{Source: "/s", Target: "/run/secrets/x"}}
		}, "spec.mounts[0].target"},
		{"tmpfs in place of the directory of secrets", func(s *S) {
			s.Secrets, s.Tmpfs = []SecretUse{{Name: "a"}}, []Tmpfs{{Target: "/run/secrets/"}}
		}, "spec.tmpfs[0].target"},
		{"service", func(s *S) {
			s.RequiredServices = Services{"db": {Image: "i", Secrets: []SecretUse{{Name: "a", File: "/a"}}}}
		}, "spec.required_services.db.secrets[0].file"},
	})
	good := goodSandbox()
	good.Secrets = []SecretUse{{Name: "a"}, {Name: "a", Version: 2, File: "b/c"}, {Name: "a", Env: "A", Mask: true}}
	good.Mounts = []Mount{{Source: "/s", Target: "/run/x"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	exec := ExecSpec{Command: []string{"true"}, Secrets: []SecretUse{{Name: "a", File: ".."}}}
	wantError(t, exec.Validate(), InvalidArgument, "", "spec.secrets[0].file")
}

func TestAnUnsealedValueIsNotPrinted(t *testing.T) {
	v := UnsealedValue{Name: "db", Value: []byte("hunter2")}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, text := range []string{fmt.Sprintf(format, v), fmt.Sprintf(format, &v), fmt.Sprintf(format, []any{v})} {
			if !strings.Contains(text, Masked) || strings.Contains(text, "hunter2") || strings.Contains(text, "104") {
				t.Errorf("%s prints %s", format, text)
			}
		}
	}
}

func TestWithoutValuesChangesNothing(t *testing.T) {
	s := SandboxSpec{SensitiveEnv: map[string]Sealed{"A": {1}},
		RequiredServices: Services{"db": {SensitiveEnv: map[string]Sealed{"B": {2}}}}}
	masked := (&Sandbox{Spec: s, Accepted: &s}).WithoutValues()
	for _, got := range []*SandboxSpec{&masked.Spec, masked.Accepted} {
		if string(got.SensitiveEnv["A"]) != Masked || string(got.RequiredServices["db"].SensitiveEnv["B"]) != Masked {
			t.Errorf("got %+v", got)
		}
	}
	if len(s.SensitiveEnv["A"]) != 1 || len(s.RequiredServices["db"].SensitiveEnv["B"]) != 1 {
		t.Errorf("the spec was changed: %+v", s)
	}
	plain := &Sandbox{Spec: SandboxSpec{Env: map[string]string{"A": "1"}}}
	if plain.WithoutValues() != plain {
		t.Error("a sandbox without sealed values was copied")
	}
}
