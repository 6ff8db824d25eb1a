package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Policy says which paths of the host may be mounted into sandboxes.
type Policy struct {
	allowed   []allowedMount
	forbidden []string // paths that no sandbox may see, for example the engine's socket and the worker's state
}

// allowedMount is an entry of the operator's allow-list.
type allowedMount struct {
	named    string // the path as the operator wrote it
	path     string // absolute, links resolved
	writable bool
}

// NewPolicy resolves an allow-list. Its entries have the form PATH, PATH:ro or PATH:rw. The parameter forbid has paths
// that must not be mounted, even if they are below an entry of the list. The error is invalid_argument if an entry does
// not exist, is the root directory, or is writable although this process cannot verify mounts.
func NewPolicy(allow, forbid []string) (*Policy, error) {
	p := &Policy{forbidden: slices.Concat(engineSockets, []string{"/proc", "/sys", "/dev"}, forbid)}
	for i, entry := range allow {
		a, err := newAllowedMount(fmt.Sprintf("mounts.allow[%d]", i), entry)
		if err != nil {
			return nil, err
		}
		p.allowed = append(p.allowed, a)
	}
	return p, nil
}

func newAllowedMount(field, entry string) (a allowedMount, err error) {
	dir, writable := strings.CutSuffix(entry, ":rw")
	if !writable {
		dir = strings.TrimSuffix(entry, ":ro")
	}
	if !filepath.IsAbs(dir) {
		return a, protocol.Invalid(field, "must be an absolute path, got %.80q", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return a, protocol.Invalid(field, "%v", err)
	}
	if real == "/" {
		return a, protocol.Invalid(field, "must not be the root of the host")
	}
	if writable && !CanVerify() {
		return a, protocol.Invalid(field, "rw needs a worker that runs as root: another worker cannot verify the mounts")
	}
	return allowedMount{named: filepath.Clean(dir), path: real, writable: writable}, nil
}

// CanVerify reports whether this process may inspect the mounts of containers. Only root may.
func CanVerify() bool { return os.Geteuid() == 0 }

// Advertised returns the entries of the allow-list for the table of hosts: first a list of all entries, then a list of
// the writable entries.
func (p *Policy) Advertised() (all, writable []string) {
	for _, a := range p.allowed {
		all = append(all, a.named)
		if a.writable {
			writable = append(writable, a.named)
		}
	}
	return all, writable
}

// open resolves the source of a mount, opens it and checks the open file. A later change of the path has no effect on
// the open file. open first resolves all links. Then it opens the resolved path without following a link below the
// entry of the allow-list, so it refuses a path in which a link has appeared since. The parameter field is the mount's
// field in the spec. The error is permission_denied with reason mount_denied, or invalid_argument.
func (p *Policy) open(field, source string, writable bool) (*os.File, string, error) {
	real, err := filepath.EvalSymlinks(source)
	if errors.Is(err, unix.EINVAL) { // a link was replaced with something else before it was read
		return nil, "", mountDenied(field+".source", "%s: a link in its path was replaced during the check", source)
	}
	if err != nil {
		invalid := protocol.Errorf(protocol.InvalidArgument, "", "%s: %v", source, err)
		invalid.Field = field + ".source"
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, "", missingSource{invalid}
		}
		return nil, "", invalid
	}
	entry, ok := p.entry(real)
	if !ok {
		return nil, "", mountDenied(field+".source", "%s is not below the host's allow-list", source)
	}
	if writable {
		if err := p.checkWritable(field+".writable", source, real, entry); err != nil {
			return nil, "", err
		}
	}
	f, err := openBelow(entry.path, real)
	if err != nil {
		return nil, "", mountDenied(field+".source", "%s: %v", source, err)
	}
	if err := p.check(f, real); err != nil {
		f.Close()
		return nil, "", mountDenied(field+".source", "%s %v", source, err)
	}
	return f, real, nil
}

// entry returns the entry of the allow-list that contains a path. If several entries contain the path, entry returns
// the entry with the longest path.
func (p *Policy) entry(real string) (narrowest allowedMount, ok bool) {
	for _, a := range p.allowed {
		if isBelow(real, a.path) && len(a.path) > len(narrowest.path) {
			narrowest, ok = a, true
		}
	}
	return narrowest, ok
}

// checkWritable refuses a writable mount if its entry of the allow-list is read-only, or if the mount contains a
// read-only entry.
func (p *Policy) checkWritable(field, source, real string, entry allowedMount) error {
	if !entry.writable {
		return mountDenied(field, "%s may only be mounted read-only", source)
	}
	for _, a := range p.allowed {
		if !a.writable && isBelow(a.path, real) {
			return mountDenied(field, "%s contains %s, which may only be mounted read-only", source, a.named)
		}
	}
	return nil
}

// check returns an error if an open source must not be mounted. The caller puts the name of the source before the text
// of the error.
func (p *Policy) check(f *os.File, real string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return errors.New("is neither a directory nor a regular file")
	}
	return p.forbids(f, info, real)
}

func mountDenied(field, format string, args ...any) error {
	err := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonMountDenied, format, args...)
	err.Field = field
	return err
}
