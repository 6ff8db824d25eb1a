package hostfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Files are the files of this host that sandboxes may use.
type Files struct {
	Mounts *Policy
	Tools  *Toolbox
}

// Check returns an error if this host does not offer a mount or a tool of the spec. It returns the bindings of the
// spec's mounts.
func (f Files) Check(spec *protocol.SandboxSpec) ([]Binding, error) {
	for i, name := range spec.Tools {
		if err := f.Tools.check(fmt.Sprintf("spec.tools[%d]", i), name); err != nil {
			return nil, err
		}
	}
	var list []Binding
	for i, m := range spec.Mounts {
		field := fmt.Sprintf("spec.mounts[%d]", i)
		source, _, err := f.Mounts.open(field, m.Source, m.Writable)
		if err != nil {
			return nil, err
		}
		info, err := source.Stat()
		source.Close()
		if err != nil {
			return nil, mountDenied(field, "%s: %v", m.Source, err)
		}
		list = append(list, Binding{
			Field: field, Source: m.Source, Target: m.Target, Writable: m.Writable, Dir: info.IsDir(),
		})
	}
	return list, nil
}

// FindHome finds the home directory of a sandbox's user. env is the value to which HOME must be set, or "" if it must
// not be set.
type FindHome func() (dir, env string, err error)

// Choose adds the bindings of a spec's tools to the bindings of its mounts, and stores all bindings in the sandbox's
// directory. If an earlier try of the create has stored bindings, Choose returns the stored bindings, because a
// container with them may exist. Choose calls home only if a tool needs the home directory.
func (f Files) Choose(spec *protocol.SandboxSpec, d hostdir.Dir, mounts []Binding, home FindHome) (Bindings, error) {
	stored, ok, err := load(d)
	if err != nil {
		return stored, err
	}
	if ok {
		return stored, stored.hide(d) // if a worker died during a start, the links still lead to the sources
	}
	chosen := Bindings{List: mounts}
	if len(spec.Tools) > 0 {
		var dir, env string
		if NeedHome(spec.Tools) {
			if dir, env, err = home(); err != nil {
				return chosen, err
			}
		}
		tools, err := f.Tools.plan(spec, dir, d)
		if err != nil {
			return chosen, err
		}
		chosen = Bindings{List: append(mounts, tools.List...), Env: tools.Env}
		if env != "" {
			chosen.Env["HOME"] = env
		}
	}
	return chosen, chosen.save(d)
}

// Open resolves, opens and checks every source of a sandbox's bindings. If lenient is set, the empty placeholder is
// mounted instead of an optional source that is missing.
func (f Files) Open(d hostdir.Dir, lenient bool) (*Opened, error) {
	stored, _, err := load(d)
	if err != nil {
		return nil, err
	}
	o := &Opened{dir: d, bindings: stored}
	for i, b := range stored.List {
		source, real, err := f.openBinding(d, b)
		if lenient && b.Optional && SourceMissing(err) {
			source, real, err = openPlaceholder(d, i, b)
		}
		if err != nil {
			o.Close()
			return nil, err
		}
		o.files, o.real = append(o.files, source), append(o.real, real)
	}
	return o, nil
}

// openBinding resolves, opens and checks the source of a binding. It also returns the resolved path.
func (f Files) openBinding(d hostdir.Dir, b Binding) (*os.File, string, error) {
	switch {
	case b.Shadow:
		return openShadow(d, b.Tool)
	case b.Tool != "":
		source, real, err := f.Tools.open(b.Field, b.Tool)
		switch {
		case errors.Is(err, errNoTool):
			gone := toolUnavailable(b.Field, "the sandbox was created with the tool files %s, which the host no longer has",
				b.Tool)
			err = missingSource{gone}
		case errors.Is(err, errUnverified):
			err = toolUnavailable(b.Field, "the sandbox was created with the tool files %s, which %v", b.Tool, err)
		}
		return source, real, err
	}
	return f.Mounts.open(b.Field, b.Source, b.Writable)
}

// openPlaceholder opens the placeholder of a binding.
func openPlaceholder(d hostdir.Dir, i int, b Binding) (*os.File, string, error) {
	err := hide(d, i, b)
	var f *os.File
	if err == nil {
		f, err = openPath(unix.AT_FDCWD, placeholder(d, i), 0)
	}
	if err != nil {
		return nil, "", hosterr.Wrap(err, "mount an empty placeholder at %s", b.Target)
	}
	return f, placeholder(d, i), nil
}

// openShadow opens the sandbox's copy of a tool's directory.
func openShadow(d hostdir.Dir, name string) (*os.File, string, error) {
	copies, err := filepath.EvalSymlinks(shadowDir(d))
	var f *os.File
	if err == nil {
		f, err = openBelow(copies, filepath.Join(copies, name))
	}
	if err != nil {
		return nil, "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing,
			"the sandbox's copy of the tool directory %s is gone: %v", name, err)
	}
	return f, filepath.Join(shadowDir(d), name), nil
}

// missingSource is the error for a source that does not exist.
type missingSource struct{ why *protocol.Error }

func (m missingSource) Error() string { return m.why.Error() }
func (m missingSource) Unwrap() error { return m.why }

// SourceMissing reports whether an error says that a source does not exist. A missing source may exist later, for
// example after a file system is mounted.
func SourceMissing(err error) bool { return errors.As(err, &missingSource{}) }
