package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// mountPolicy says which paths of the host may be mounted into sandboxes.
type mountPolicy struct {
	allowed   []string // absolute, links resolved
	forbidden []string // absolute, links resolved: the Engine's socket, the worker's state
}

// newMountPolicy resolves an allow-list. An entry that is the root, or does not exist, is refused.
func newMountPolicy(allow, forbid []string) (*mountPolicy, error) {
	p := &mountPolicy{}
	for i, dir := range allow {
		field := fmt.Sprintf("allow_mounts[%d]", i)
		if !filepath.IsAbs(dir) {
			return nil, protocol.Invalid(field, "must be an absolute path, got %.80q", dir)
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, protocol.Invalid(field, "%v", err)
		}
		if real == "/" {
			return nil, protocol.Invalid(field, "must not be the root of the host")
		}
		p.allowed = append(p.allowed, real)
	}
	for _, path := range forbid {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		p.forbidden = append(p.forbidden, path)
	}
	return p, nil
}

// binds resolves the mounts of a spec. Errors: permission_denied with reason mount_denied, or
// invalid_argument, naming the field.
func (p *mountPolicy) binds(mounts []protocol.Mount) ([]docker.Bind, error) {
	var binds []docker.Bind
	for i, m := range mounts {
		source, err := p.resolve(fmt.Sprintf("spec.mounts[%d].source", i), m.Source)
		if err != nil {
			return nil, err
		}
		// Without what is mounted below it: the Engine would leave that writable.
		binds = append(binds, docker.Bind{Source: source, Target: m.Target, ReadOnly: true, NonRecursive: true})
	}
	return binds, nil
}

// resolve follows every link of a path and judges where it really leads.
func (p *mountPolicy) resolve(field, source string) (string, error) {
	denied := func(format string, args ...any) error {
		return &protocol.Error{Code: protocol.PermissionDenied, Reason: protocol.ReasonMountDenied, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		return "", &protocol.Error{Code: protocol.InvalidArgument, Field: field, Message: fmt.Sprintf("%s: %v", source, err)}
	}
	if !slices.ContainsFunc(p.allowed, func(dir string) bool { return below(real, dir) }) {
		return "", denied("%s is not below the host's allow-list", source)
	}
	for _, f := range p.forbidden {
		if below(real, f) || below(f, real) {
			return "", denied("%s holds what no sandbox may see", source)
		}
	}
	info, err := os.Lstat(real)
	if err != nil {
		return "", &protocol.Error{Code: protocol.InvalidArgument, Field: field, Message: err.Error()}
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return "", denied("%s is neither a directory nor a regular file", source)
	}
	return real, nil
}

// below says whether a clean path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
