package protocol

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Each request about files has a method Validate, which checks everything that can be known without the sandbox.
// Error: invalid_argument with the field below the request.

// Validate checks the request.
func (r *FileRead) Validate() error {
	if r.Offset < 0 || r.Length < 0 {
		return Invalid("offset", "offset and length must not be negative")
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FileWrite) Validate() error {
	switch r.How {
	case "", FileReplace, FileCreate, FileAppend:
	default:
		return Invalid("how", "must be replace, create or append, got %.80q", r.How)
	}
	if err := validateModeAndOwner(r.Mode, r.Owner); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request. The paths themselves are checked one by one, because each has its own error.
func (r *FileStat) Validate() error {
	if n := len(r.Paths); n == 0 || n > MaxFilePaths {
		return Invalid("paths", "must have 1 to %d paths, got %d", MaxFilePaths, n)
	}
	return nil
}

// Validate checks the request.
func (r *FileList) Validate() error {
	if r.Depth < -1 {
		return Invalid("depth", "must be -1 for all levels, or a number of levels, got %d", r.Depth)
	}
	return validatePage(r.Path, r.Limit, r.Page)
}

// Validate checks the request.
func (r *FileMkdir) Validate() error {
	if err := validateModeAndOwner(r.Mode, r.Owner); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FileMove) Validate() error {
	if err := ValidateFilePath("from", r.From); err != nil {
		return err
	}
	return ValidateFilePath("to", r.To)
}

// Validate checks the request.
func (r *FileCopy) Validate() error {
	if err := ValidateFilePath("from", r.From); err != nil {
		return err
	}
	return ValidateFilePath("to", r.To)
}

// Validate checks the request.
func (r *FileRemove) Validate() error { return ValidateFilePath("path", r.Path) }

// Validate checks the request.
func (r *FileGlob) Validate() error {
	if r.Pattern == "" {
		return Invalid("pattern", "must not be empty")
	}
	if err := validatePatterns("pattern", r.Pattern); err != nil {
		return err
	}
	if err := validatePatterns("excludes", r.Excludes...); err != nil {
		return err
	}
	return validatePage(r.Path, r.Limit, r.Page)
}

// Validate checks the request.
func (r *FileGrep) Validate() error {
	if r.Limit < 0 || r.Limit > MaxFileMatches {
		return Invalid("limit", "must be at most %d, got %d", MaxFileMatches, r.Limit)
	}
	if r.LineBytes < 0 || r.LineBytes > MaxFileLine {
		return Invalid("line_bytes", "must be at most %d, got %d", MaxFileLine, r.LineBytes)
	}
	if r.MaxBytes < 0 || r.MaxBytes > MaxFileGrepBytes {
		return Invalid("max_bytes", "must be at most %d, got %d", int64(MaxFileGrepBytes), int64(r.MaxBytes))
	}
	if err := validatePatterns("include", r.Include...); err != nil {
		return err
	}
	if err := validatePatterns("excludes", r.Excludes...); err != nil {
		return err
	}
	if _, err := r.Compile(); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Compile returns the compiled expression. It matches within lines: ^ and $ are the ends of a line. Error:
// invalid_argument.
func (r *FileGrep) Compile() (*regexp.Regexp, error) {
	if len(r.Expression) > MaxFilePattern || r.Expression == "" {
		return nil, Invalid("expression", "must have 1 to %d bytes, got %d", MaxFilePattern, len(r.Expression))
	}
	expression := r.Expression
	if r.IgnoreCase {
		expression = "(?i)" + expression
	}
	compiled, err := regexp.Compile(expression)
	if wrong := (*syntax.Error)(nil); err != nil {
		if errors.As(err, &wrong) {
			return nil, Invalid("expression", "is not a valid RE2 expression: %s: %.80q", wrong.Code, wrong.Expr)
		}
		return nil, Invalid("expression", "is not a valid RE2 expression")
	}
	return compiled, nil
}

// Validate checks the request.
func (r *FileEdit) Validate() error {
	if n := len(r.Old); n == 0 || n > MaxFileEditText {
		return Invalid("old", "must have 1 to %d bytes, got %d", MaxFileEditText, n)
	}
	if n := len(r.New); n > MaxFileEditText {
		return Invalid("new", "must have at most %d bytes, got %d", MaxFileEditText, n)
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FileChanges) Validate() error {
	if len(r.Since) > maxFileToken {
		return Invalid("since", "is not a token from an earlier answer")
	}
	return validatePage(r.Path, r.Limit, r.Page)
}

// Validate checks the request.
func (r *FileWatch) Validate() error {
	if err := validatePatterns("excludes", r.Excludes...); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FilePack) Validate() error {
	if err := validatePatterns("excludes", r.Excludes...); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FileUnpack) Validate() error {
	if r.Owner != "" && r.KeepOwner {
		return Invalid("keep_owner", "must not be set together with owner")
	}
	if err := validateModeAndOwner(nil, r.Owner); err != nil {
		return err
	}
	return ValidateFilePath("path", r.Path)
}

// Validate checks the request.
func (r *FileDial) Validate() error {
	switch r.Network {
	case "tcp":
		if r.Address == "" || len(r.Address) > maxDialAddress {
			return Invalid("address", "must be host:port, got %.80q", r.Address)
		}
		return nil
	case "unix":
		if len(r.Address) > maxSocketPath {
			return Invalid("address", "the path of a socket has at most %d bytes, got %d", maxSocketPath, len(r.Address))
		}
		return ValidateFilePath("address", r.Address)
	}
	return Invalid("network", "must be tcp or unix, got %.80q", r.Network)
}

const (
	maxFileToken   = 64                           // bytes of [FilePage.Token]
	maxDialAddress = 300                          // bytes of "host:port"
	maxSocketPath  = 107                          // bytes of a unix socket's path, by the kernel's limit
	maxFileNext    = 2*MaxFilePath + maxFileToken // bytes of [FilePage.Next]
)

func validatePage(path string, limit int, page string) error {
	if limit < 0 || limit > MaxFilePage {
		return Invalid("limit", "must be at most %d, got %d", MaxFilePage, limit)
	}
	if len(page) > maxFileNext {
		return Invalid("page", "is not a page token from an earlier answer")
	}
	return ValidateFilePath("path", path)
}

func validateModeAndOwner(mode *uint32, owner string) error {
	if mode != nil && *mode > 0o7777 {
		return Invalid("mode", "must be 0 to 07777, got %#o", *mode)
	}
	if owner == "" {
		return nil
	}
	_, _, err := FileOwner("owner", owner)
	return err
}

func validatePatterns(field string, patterns ...string) error {
	if len(patterns) > MaxFilePatterns {
		return Invalid(field, "has %d patterns, at most %d are allowed", len(patterns), MaxFilePatterns)
	}
	for i, p := range patterns {
		at := field
		if field != "pattern" {
			at = fmt.Sprintf("%s[%d]", field, i)
		}
		switch {
		case p == "" || len(p) > MaxFilePattern:
			return Invalid(at, "must have 1 to %d bytes, got %d", MaxFilePattern, len(p))
		case strings.ContainsRune(p, 0):
			return Invalid(at, "must not contain a NUL byte")
		case strings.HasPrefix(p, "/"):
			return Invalid(at, "must be relative to the directory that is searched, got %.80q", p)
		case strings.Count(p, "{") > maxPatternBraces:
			return Invalid(at, "has more than %d braces", maxPatternBraces)
		}
	}
	return nil
}

// maxPatternBraces bounds the work of one match: each brace multiplies it.
const maxPatternBraces = 8
