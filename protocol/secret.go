package protocol

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
)

// Limits of secrets.
const (
	MaxSecretValue    = 64 << 10              // bytes of one value
	MaxSealedValue    = MaxSecretValue + 1024 // bytes of one sealed value
	MaxSecretUses     = 64                    // secrets that one spec, service or exec names
	MaxTenantSecrets  = 1000                  // secrets of one tenant
	MaxTenantNames    = 10_000                // names of secrets, also removed ones, that are kept for one tenant
	MaxTenantBytes    = 16 << 20              // bytes of the kept versions of one tenant's secrets
	MaxSecretVersions = 10                    // versions of one secret that are kept
	MaxMaskedBytes    = 256 << 10             // bytes of all values that one container or one exec masks
)

// SecretsDir is the directory of secrets in a container. It is a file system in memory. The host may swap it to disk.
const SecretsDir = "/run/secrets"

// Sealed is a value that only the fleet's key opens. Reads return [Masked] in its place.
type Sealed []byte

// MarshalJSON returns the sealed bytes in base64, or [Masked] as it is.
func (s Sealed) MarshalJSON() ([]byte, error) {
	if string(s) == Masked {
		return json.Marshal(Masked)
	}
	return json.Marshal([]byte(s))
}

// UnmarshalJSON reads the form of MarshalJSON.
func (s *Sealed) UnmarshalJSON(text []byte) error {
	if string(text) == `"`+Masked+`"` {
		*s = Sealed(Masked)
		return nil
	}
	return json.Unmarshal(text, (*[]byte)(s))
}

// SecretUse gives a secret of the tenant to the commands of a container, as a file or as an environment variable. The
// value is in no event and in no spec. Without File and Env, the secret becomes a file with the secret's name.
type SecretUse struct {
	Name    string `json:"name"`              // name of the secret
	Version uint64 `json:"version,omitempty"` // default: the newest version when the container or the exec starts
	// path below /run/secrets; the command's user owns the file, which has mode 0400
	File string `json:"file,omitempty"`
	Env  string `json:"env,omitempty"`  // environment variable, instead of a file
	Mask bool   `json:"mask,omitempty"` // replace the value in output by as many asterisks; at least 4 bytes
}

// UnsealQuery is a worker's question for the value behind one field of a spec that it carries out. The worker
// publishes it to [UnsealSubject], which proves the worker's name, host and key.
type UnsealQuery struct {
	Version    int    `json:"v"`
	Tenant     string `json:"tenant"`
	Sandbox    string `json:"sandbox"`
	Generation uint64 `json:"generation"`     // generation of the sandbox
	Exec       string `json:"exec,omitempty"` // id of the exec; empty: the sandbox's own spec
	// path of a SecretUse or of a sensitive variable in the spec, such as "secrets[0]", "sensitive_env.TOKEN" or
	// "required_services.db.secrets[1]"
	Field     string `json:"field"`
	Key       string `json:"key"`       // public curve key (xkey) of the worker, to which the answer is sealed
	Signature []byte `json:"signature"` // signature of the other fields, by the worker's key
}

// UnsealReply answers an [UnsealQuery].
type UnsealReply struct {
	Error  *Error `json:"error,omitempty"`
	Sealed []byte `json:"sealed,omitempty"` // an [UnsealedValue], sealed to [UnsealQuery.Key]
}

// UnsealedValue is the value behind a field of a spec. It must not be stored or logged.
type UnsealedValue struct {
	Name    string `json:"name,omitempty"`    // name of the secret; empty for a sensitive variable
	Version uint64 `json:"version,omitempty"` // version of the secret
	Value   []byte `json:"value"`
}

// The printed forms of a value are three asterisks, so that no log line or error shows the value by accident.

// String returns three asterisks.
func (UnsealedValue) String() string { return Masked }

// GoString returns three asterisks.
func (UnsealedValue) GoString() string { return Masked }

// Format writes three asterisks for every verb.
func (UnsealedValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Masked)) } // a Formatter reports no errors

// Masked is what people see instead of a value that is secret.
const Masked = "***"

// SecretInfo describes a secret without its value.
type SecretInfo struct {
	Name     string          `json:"name"`
	Versions []SecretVersion `json:"versions"` // at most [MaxSecretVersions], the newest first
}

// SecretVersion describes one version of a secret. The numbers of a secret's versions only grow, even if the secret was
// removed in between.
type SecretVersion struct {
	Version uint64    `json:"version"`         // from 1
	Size    int       `json:"size"`            // bytes of the value
	SetAt   time.Time `json:"set_at"`          // by the store's clock
	Actor   string    `json:"actor,omitempty"` // user who set it
	Key     string    `json:"key"`             // public fleet key that it is sealed to
}

// Verbs of requests about a secret.
const (
	SecretSet    = "set"
	SecretRemove = "remove"
)

// SecretRequest is a client's request to set or remove a secret. The subject names the tenant, the user and the secret:
// see [SecretSubject].
type SecretRequest struct {
	Version int    `json:"v"`
	Sealed  []byte `json:"sealed,omitempty"` // value to set, sealed to the fleet's key for the tenant and the name
}

// ErrTooManyMasked is the error for a use of a secret whose value does not fit into [MaxMaskedBytes]. field is the path
// of the use, such as "spec.secrets[1]".
func ErrTooManyMasked(field string) *Error {
	return &Error{Code: FailedPrecondition, Reason: ReasonTooLarge, Field: field + ".mask",
		Message: fmt.Sprintf("the values to mask have more than %s in all: mask fewer or smaller values",
			Bytes(MaxMaskedBytes))}
}

// ValidateSecretName checks the name of a secret: an id. Error: invalid_argument with the given field.
func ValidateSecretName(field, name string) error { return ValidateID(field, name) }

// Path returns the path of the secret's file below the directory of secrets, and "" if the secret is no file.
func (u *SecretUse) Path() string {
	switch {
	case u.Env != "":
		return ""
	case u.File != "":
		return u.File
	}
	return u.Name
}

// maxSecretPath is the greatest length of the path of a secret's file in bytes. Each part of the path may have
// maxSecretPathPart bytes.
const (
	maxSecretPath     = 1024
	maxSecretPathPart = 255
)

// validateSecrets checks the secrets and sensitive variables of a spec, service or exec against each other and against
// its variables.
func validateSecrets(field string, env map[string]string, sensitive map[string]Sealed, uses []SecretUse) error {
	if err := validateSensitiveEnv(field, env, sensitive); err != nil {
		return err
	}
	if len(uses) > MaxSecretUses {
		return Invalid(field+".secrets", "has %d entries, at most %d are allowed", len(uses), MaxSecretUses)
	}
	files, variables := map[string]string{}, map[string]string{}
	for i := range uses {
		u, at := &uses[i], fmt.Sprintf("%s.secrets[%d]", field, i)
		if err := ValidateSecretName(at+".name", u.Name); err != nil {
			return err
		}
		if u.Env == "" {
			if err := u.validateFile(at, files); err != nil {
				return err
			}
			continue
		}
		_, plain := env[u.Env]
		_, sealed := sensitive[u.Env]
		switch {
		case u.File != "":
			return Invalid(at+".env", "a secret is a file or a variable, not both")
		case !envPattern.MatchString(u.Env):
			return Invalid(at+".env", "must match [A-Za-z_][A-Za-z0-9_]*, got %.80q", u.Env)
		case plain || sealed:
			return Invalid(at+".env", "the variable %s is also set by env or sensitive_env", u.Env)
		case variables[u.Env] != "":
			return Invalid(at+".env", "the variable %s is also set by %s", u.Env, variables[u.Env])
		}
		variables[u.Env] = strings.TrimPrefix(at, "spec.")
	}
	return nil
}

func validateSensitiveEnv(field string, env map[string]string, sensitive map[string]Sealed) error {
	if n := len(env) + len(sensitive); n > MaxEnv {
		return Invalid(field+".sensitive_env", "there are %d variables, at most %d are allowed", n, MaxEnv)
	}
	total := 0
	for _, name := range sortedKeys(sensitive) {
		at := field + ".sensitive_env." + name
		_, both := env[name]
		switch n := len(sensitive[name]); {
		case !envPattern.MatchString(name):
			return Invalid(fmt.Sprintf("%s.sensitive_env.%.80s", field, name),
				"name must match [A-Za-z_][A-Za-z0-9_]*, got %.80q", name)
		case both:
			return Invalid(at, "the variable is also in env")
		case n == 0:
			return Invalid(at, "must have a sealed value")
		case n > MaxSealedValue:
			return Invalid(at, "has %d sealed bytes, at most %d are allowed", n, MaxSealedValue)
		default:
			total += len(name) + n
		}
	}
	if total > MaxEnvBytes {
		return Invalid(field+".sensitive_env", "has %d bytes, at most %d are allowed", total, MaxEnvBytes)
	}
	return nil
}

// validateFile checks the path of a secret's file. files has the paths of the earlier files, with their fields.
func (u *SecretUse) validateFile(at string, files map[string]string) error {
	p := u.Path()
	switch {
	case len(p) > maxSecretPath:
		return Invalid(at+".file", "is longer than %d bytes", maxSecretPath)
	case strings.ContainsRune(p, 0):
		return Invalid(at+".file", "must not contain a NUL byte")
	case path.IsAbs(p) || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return Invalid(at+".file", "must be a clean relative path below %s, got %.80q", SecretsDir, p)
	}
	for _, part := range strings.Split(p, "/") {
		if len(part) > maxSecretPathPart {
			return Invalid(at+".file", "has a part of more than %d bytes", maxSecretPathPart)
		}
	}
	for _, other := range sortedKeys(files) {
		if isBelow(p, other) || isBelow(other, p) {
			return Invalid(at+".file", "collides with the file of %s: %s", files[other], other)
		}
	}
	files[p] = strings.TrimPrefix(at, "spec.")
	return nil
}

// validateSecretsDir checks that nothing else of a spec is placed in the directory of secrets, if the spec has files
// there.
func (s *SandboxSpec) validateSecretsDir() error {
	if !hasSecretFile(s.Secrets) {
		return nil
	}
	for i, m := range s.Mounts {
		if isBelow(path.Clean(m.Target), SecretsDir) {
			return errInSecretsDir(fmt.Sprintf("spec.mounts[%d].target", i))
		}
	}
	for i, m := range s.Tmpfs {
		if isBelow(path.Clean(m.Target), SecretsDir) {
			return errInSecretsDir(fmt.Sprintf("spec.tmpfs[%d].target", i))
		}
	}
	for i, c := range s.Copies {
		if c.Service == "" && isBelow(path.Clean(c.Target), SecretsDir) {
			return errInSecretsDir(fmt.Sprintf("spec.copies[%d].target", i))
		}
	}
	return nil
}

func errInSecretsDir(field string) error {
	return Invalid(field, "must not be in %s, because the spec has secrets there", SecretsDir)
}

func hasSecretFile(uses []SecretUse) bool {
	for i := range uses {
		if uses[i].Env == "" {
			return true
		}
	}
	return false
}

// SecretField is a field of a spec that stands for a value which is not in the spec: a sensitive variable or the use of
// a secret.
type SecretField struct {
	Field    string     // path below the spec, as in [UnsealQuery]
	Variable string     // name of the sensitive variable; empty for the use of a secret
	Sealed   Sealed     // sealed value of the sensitive variable
	Use      *SecretUse // nil for a sensitive variable
}

// SecretFields returns the fields of the spec and its services that stand for values, in a fixed order.
func (s *SandboxSpec) SecretFields() []SecretField {
	all := secretFields("", s.SensitiveEnv, s.Secrets)
	names, _ := s.Services()
	for _, name := range names {
		v, _ := s.Service(name)
		all = append(all, secretFields(strings.TrimPrefix(s.ServiceField(name), "spec.")+".", v.SensitiveEnv, v.Secrets)...)
	}
	return all
}

// SecretFields returns the fields of the spec that stand for values, in a fixed order.
func (s *ExecSpec) SecretFields() []SecretField { return secretFields("", s.SensitiveEnv, s.Secrets) }

func secretFields(prefix string, sensitive map[string]Sealed, uses []SecretUse) (all []SecretField) {
	for _, name := range sortedKeys(sensitive) {
		all = append(all, SecretField{Field: prefix + "sensitive_env." + name, Variable: name, Sealed: sensitive[name]})
	}
	for i := range uses {
		all = append(all, SecretField{Field: fmt.Sprintf("%ssecrets[%d]", prefix, i), Use: &uses[i]})
	}
	return all
}

// UnsealText returns the text that a worker signs to ask for a value. The text has the form of [SignedText].
func UnsealText(deployment string, q *UnsealQuery) []byte {
	unsigned := *q
	unsigned.Signature = nil
	return textOf(unsealDomain, deployment, string(Encode(&unsigned)))
}

// unsealDomain begins the text that a worker signs to ask for a value.
const unsealDomain = "boxfleet.v1.unseal"
