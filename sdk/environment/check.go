package environment

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits, in bytes.
const (
	MaxCommand  = 96 << 10 // size of a command
	MaxCode     = 4 << 20  // size of code
	MaxEnvBytes = 64 << 10 // size of the names and values of Options.Env together
	MaxPath     = 4096     // size of a path
	MaxReadFile = 64 << 20 // size of a file that ReadFile returns
	MaxOutput   = 16 << 20 // size of each of stdout and stderr in a Result
	maxLanguage = 64       // size of the name of a language
	maxUser     = 256      // size of the name of a user
)

var (
	envName      = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]*\z`)
	languageName = regexp.MustCompile(`\A[A-Za-z0-9_.][A-Za-z0-9._-]*\z`)
	userName     = regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?\z`)
)

func invalid(field, format string, args ...any) error {
	e := Errorf(Invalid, format, args...)
	e.Field = field
	return e
}

// ValidateEnvKeys checks that each name is a POSIX name: letters, digits and _, not beginning with a digit. The whole
// name is checked, so "A\n" is refused. Error: ErrInvalid, naming "env." and the name.
func ValidateEnvKeys(env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(name) {
			e := Errorf(Invalid, "a name must have only letters, digits and _, and must not begin with a digit, got %.80q", name)
			e.Field = "env." + strings.ToValidUTF8(name[:min(len(name), 80)], "?")
			return e
		}
	}
	return nil
}

// CheckPath checks a path: 1 to [MaxPath] bytes of UTF-8 without NUL. Error: ErrInvalid naming field.
func CheckPath(field, path string) error {
	switch {
	case path == "":
		return invalid(field, "must not be empty")
	case len(path) > MaxPath:
		return invalid(field, "has %d bytes, at most %d are allowed", len(path), MaxPath)
	case strings.ContainsRune(path, 0):
		return invalid(field, "must not contain a NUL byte")
	case !utf8.ValidString(path):
		return invalid(field, "must be valid UTF-8")
	}
	return nil
}

// CheckLanguage checks the name of a language: letters, digits, '.', '_' and '-', not beginning with '-'. The whole
// name is checked, so "python\n" is refused. Error: ErrInvalid naming "language".
func CheckLanguage(language string) error {
	if len(language) > maxLanguage || !languageName.MatchString(language) || strings.Trim(language, ".") == "" {
		return invalid("language", "must have only letters, digits and ._-, and must not begin with -, got %.80q", language)
	}
	return nil
}

// CheckCommand checks a command: 1 to [MaxCommand] bytes, not only white space, without NUL. Error: ErrInvalid naming
// "command".
func CheckCommand(command string) error {
	switch {
	case strings.TrimSpace(command) == "":
		return invalid("command", "must not be empty")
	case len(command) > MaxCommand:
		return invalid("command", "has %d bytes, at most %d are allowed; write a file and run that", len(command), MaxCommand)
	case strings.ContainsRune(command, 0):
		return invalid("command", "must not contain a NUL byte")
	}
	return nil
}

// CheckCode checks a language and its code: at most [MaxCode] bytes. Error: ErrInvalid naming "language" or "code".
func CheckCode(language, code string) error {
	if err := CheckLanguage(language); err != nil {
		return err
	}
	if len(code) > MaxCode {
		return invalid("code", "has %d bytes, at most %d are allowed", len(code), MaxCode)
	}
	return nil
}

// Check checks the options. Error: ErrInvalid naming "timeout", "dir", "env" or "user".
func (o Options) Check() error {
	if o.Timeout < 0 {
		return invalid("timeout", "must not be negative, got %v", o.Timeout)
	}
	if o.Dir != "" {
		if err := CheckPath("dir", o.Dir); err != nil {
			return err
		}
	}
	if o.User != "" && (len(o.User) > maxUser || !userName.MatchString(o.User)) {
		return invalid("user", "must be a name or a uid, with an optional :group, got %.80q", o.User)
	}
	if err := ValidateEnvKeys(o.Env); err != nil {
		return err
	}
	total := 0
	for name, value := range o.Env {
		if strings.ContainsRune(value, 0) {
			return invalid("env."+name, "must not contain a NUL byte")
		}
		total += len(name) + len(value)
	}
	if total > MaxEnvBytes {
		return invalid("env", "has %d bytes, at most %d are allowed", total, MaxEnvBytes)
	}
	return nil
}

// Interpreters returns the programs that may run a language, in the order in which an environment tries them. Most
// languages are run by the program of the same name.
func Interpreters(language string) []string {
	switch language {
	case "python":
		return []string{"python3", "python"}
	case "javascript", "js":
		return []string{"node", "nodejs"}
	case "shell":
		return []string{"sh"}
	}
	return []string{language}
}

// Quote makes one word of a POSIX shell from any text without NUL.
func Quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// BuildShellEnvPrefix returns the text that sets variables in front of a shell command, sorted by name, such as
// "export A='1' && export B='2' && "; "" without variables. Error: that of [ValidateEnvKeys], and ErrInvalid for a
// value with a NUL byte.
func BuildShellEnvPrefix(env map[string]string) (string, error) {
	if err := ValidateEnvKeys(env); err != nil {
		return "", err
	}
	var prefix strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsRune(env[name], 0) {
			return "", invalid("env."+name, "must not contain a NUL byte")
		}
		prefix.WriteString("export " + name + "=" + Quote(env[name]) + " && ")
	}
	return prefix.String(), nil
}
