package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// binding is one path of the host in a sandbox, as its create chose it. Each start makes the same
// ones again, by looking anew where they lead.
//
// The Engine opens a mount's source itself, by its name, when the container starts; between a look
// at the source and that moment somebody who can write there may put a link in its place. So the
// Engine is given the name of a link in the sandbox's directory. Until the start, and after it, the
// link leads to an empty placeholder: what is copied into the container that was made, or started by
// somebody else's hand, never reaches the host. For the start it leads to the source, which stays
// open. Then, before the supervisor is let in, and so before anything of the caller's runs, what
// the container sees is compared with what was opened.
type binding struct {
	Field    string `json:"field"`            // of the spec, for errors
	Source   string `json:"source,omitempty"` // on the host, as the caller named it
	Tool     string `json:"tool,omitempty"`   // the tool mount that it is; "": the allow-list must hold Source
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
	Dir      bool   `json:"dir,omitempty"`      // the source is a directory
	Shadow   bool   `json:"shadow,omitempty"`   // the source is a copy in the sandbox's directory
	Optional bool   `json:"optional,omitempty"` // the tool works without it
}

// bindingList is what a sandbox's directory keeps of its bindings.
type bindingList struct {
	Bindings []binding         `json:"bindings,omitempty"`
	Env      map[string]string `json:"env,omitempty"` // by which programs find them
}

func (d directory) links() string            { return filepath.Join(d.path, "mounts") }
func (d directory) link(i int) string        { return filepath.Join(d.links(), strconv.Itoa(i)) }
func (d directory) placeholder(i int) string { return d.link(i) + ".empty" }
func (d directory) bindingsFile() string     { return filepath.Join(d.path, "bindings") }

// unverified is there from before a start until the container's mounts were compared.
func (d directory) unverified() string { return filepath.Join(d.path, "unverified") }

// bindings reads what the create chose. ok is false where it did not come so far, or was done by a
// worker that kept no list.
func (d directory) bindings() (kept bindingList, ok bool, err error) {
	data, err := os.ReadFile(d.bindingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return kept, false, nil
	}
	if err == nil {
		err = protocol.Decode(data, &kept)
	}
	if err != nil {
		return kept, false, hostError(err, "read a sandbox's mounts")
	}
	return kept, true, nil
}

// saveBindings keeps what a create chose, and makes the placeholders.
func (d directory) saveBindings(list bindingList) error {
	err := os.MkdirAll(d.links(), 0o700)
	for i, b := range list.Bindings {
		err = errors.Join(err, d.hide(i, b))
	}
	tmp := d.bindingsFile() + ".tmp"
	err = errors.Join(err, os.WriteFile(tmp, protocol.Encode(&list), 0o600), os.Rename(tmp, d.bindingsFile()))
	if err != nil {
		return hostError(err, "keep a sandbox's mounts")
	}
	return nil
}

// hide has a link lead to its placeholder, which is made where it is missing.
func (d directory) hide(i int, b binding) error {
	placeholder := d.placeholder(i)
	var err error
	if b.Dir {
		err = os.MkdirAll(placeholder, 0o555)
	} else {
		var f *os.File
		if f, err = os.OpenFile(placeholder, os.O_CREATE|os.O_RDONLY, 0o444); err == nil {
			err = f.Close()
		}
	}
	return errors.Join(err, d.point(i, filepath.Base(placeholder)))
}

// hideAll hides every source of a sandbox.
func (d directory) hideAll(list []binding) error {
	var errs []error
	for i, b := range list {
		errs = append(errs, d.hide(i, b))
	}
	if err := errors.Join(errs...); err != nil {
		return hostError(err, "hide the sources of mounts")
	}
	return nil
}

// point has a link lead somewhere, at once.
func (d directory) point(i int, to string) error {
	tmp := d.link(i) + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Symlink(to, tmp), os.Rename(tmp, d.link(i)))
}

// binds are the mounts of a container, by their links. They are without what is mounted below their
// sources: the Engine would leave that writable in a read-only mount, and nobody has judged it.
func (d directory) binds(list []binding) []docker.Bind {
	var binds []docker.Bind
	for i, b := range list {
		binds = append(binds, docker.Bind{Source: d.link(i), Target: b.Target, ReadOnly: !b.Writable, NonRecursive: true})
	}
	return binds
}

// shown are bindings whose links lead to their sources, for the moment of a start.
type shown struct {
	d     directory
	list  []binding
	files []*os.File
	real  []string // their paths
}

// openBindings opens every source of a sandbox's bindings anew, and judges it. Where lenient, an optional
// one that is missing has its placeholder instead.
func (w *worker) openBindings(d directory, lenient bool) (*shown, error) {
	kept, _, err := d.bindings()
	if err != nil {
		return nil, err
	}
	s := &shown{d: d, list: kept.Bindings}
	for i, b := range kept.Bindings {
		f, real, err := w.openBinding(d, b)
		if lenient && b.Optional && sourceMissing(err) {
			f, real, err = d.openPlaceholder(i, b)
		}
		if err != nil {
			s.close()
			return nil, err
		}
		s.files, s.real = append(s.files, f), append(s.real, real)
	}
	return s, nil
}

// openPlaceholder opens what a link leads to that is hidden.
func (d directory) openPlaceholder(i int, b binding) (*os.File, string, error) {
	err := d.hide(i, b)
	var f *os.File
	if err == nil {
		f, err = openPath(unix.AT_FDCWD, d.placeholder(i), 0)
	}
	if err != nil {
		return nil, "", hostError(err, "mount nothing at %s", b.Target)
	}
	return f, d.placeholder(i), nil
}

// missingSource is the error of a binding whose source is not there, and may come back.
type missingSource struct{ why *protocol.Error }

func (m missingSource) Error() string { return m.why.Error() }
func (m missingSource) Unwrap() error { return m.why }

func sourceMissing(err error) bool { return errors.As(err, &missingSource{}) }

// show has the links lead to the sources, and notes that nobody has yet seen what the container
// makes of them.
func (s *shown) show() error {
	if len(s.files) == 0 {
		return nil
	}
	err := os.WriteFile(s.d.unverified(), nil, 0o600)
	for i, real := range s.real {
		err = errors.Join(err, s.d.point(i, real))
	}
	if err != nil {
		return hostError(err, "point to the sources of mounts")
	}
	return nil
}

// hide has the links lead to nothing again. The sources stay open.
func (s *shown) hide() error { return s.d.hideAll(s.list) }

// close lets go of the sources.
func (s *shown) close() {
	if s == nil {
		return
	}
	for _, f := range s.files {
		f.Close()
	}
	s.files = nil
}

// canVerify says whether this process may look into containers.
func canVerify() bool { return os.Geteuid() == 0 }

// verify compares what a container that has just started sees with what was opened for it. pid is
// its supervisor's, which nobody has spoken to yet.
func (s *shown) verify(pid int) error {
	if len(s.files) == 0 || !canVerify() {
		return nil
	}
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonMountDenied, "look at a container's mounts: %v", err)
	}
	defer root.Close()
	for i, f := range s.files {
		if err := sameMount(root, s.list[i], f); err != nil {
			return mountDenied(s.list[i].Field, "%s in the container is not what was to be mounted there: %v", s.list[i].Target, err)
		}
	}
	if err := os.Remove(s.d.unverified()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostError(err, "note that mounts were verified")
	}
	return nil
}

func sameMount(root *os.File, b binding, source *os.File) error {
	seen, err := openPath(int(root.Fd()), b.Target, unix.RESOLVE_IN_ROOT)
	if err != nil {
		return err
	}
	defer seen.Close()
	want, err := source.Stat()
	if err != nil {
		return err
	}
	got, err := seen.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(want, got) {
		return errors.New("its source was exchanged while the container started")
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(seen.Fd()), &system); err != nil {
		return err
	}
	if !b.Writable && system.Flags&unix.ST_RDONLY == 0 {
		return errors.New("it can be written")
	}
	return nil
}

// openBinding opens the source of a binding as it is now.
func (w *worker) openBinding(d directory, b binding) (*os.File, string, error) {
	switch {
	case b.Shadow:
		home, err := filepath.EvalSymlinks(d.shadows())
		var f *os.File
		if err == nil {
			f, err = openBelow(home, filepath.Join(home, b.Tool))
		}
		if err != nil {
			return nil, "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonContainerMissing, "the sandbox's copy of %s is gone: %v", b.Tool, err)
		}
		return f, d.shadow(b.Tool), nil
	case b.Tool != "":
		f, real, err := w.tools.open(b.Field, b.Tool)
		switch {
		case errors.Is(err, errNoTool):
			err = missingSource{toolUnavailable(b.Field, "%s, which the sandbox was made with, is not on the host any more", b.Tool)}
		case errors.Is(err, errUnverified):
			err = toolUnavailable(b.Field, "the sandbox was made with %s, which %v", b.Tool, err)
		}
		return f, real, err
	}
	return w.mounts.open(b.Field, b.Source, b.Writable)
}

// keepBindings adds those of tools to the bindings of a create, and keeps them in the sandbox's
// directory. What an earlier try chose counts: its container may be there already.
func (s *sandbox) keepBindings(ctx context.Context, b *protocol.Sandbox, d directory, image docker.Image, user string, mounts []binding) (bindingList, error) {
	kept, ok, err := d.bindings()
	if err != nil {
		return kept, err
	}
	if ok {
		return kept, d.hideAll(kept.Bindings) // a worker that died during a start left the sources in sight
	}
	list := bindingList{Bindings: mounts}
	if len(b.Spec.Tools) > 0 {
		var home, given string
		if needHome(b.Spec.Tools) {
			if home, given, err = s.homeOf(ctx, b, image, user); err != nil {
				return list, err
			}
		}
		ofTools, env, err := s.w.tools.plan(&b.Spec, home, d)
		if err != nil {
			return list, err
		}
		if given != "" {
			env["HOME"] = given
		}
		list = bindingList{Bindings: append(mounts, ofTools...), Env: env}
	}
	return list, d.saveBindings(list)
}

// planBindings chooses the bindings of a spec, and judges their sources.
func (w *worker) planBindings(spec *protocol.SandboxSpec) ([]binding, error) {
	for i, name := range spec.Tools {
		if err := w.tools.check(fmt.Sprintf("spec.tools[%d]", i), name); err != nil {
			return nil, err
		}
	}
	var list []binding
	for i, m := range spec.Mounts {
		field := fmt.Sprintf("spec.mounts[%d]", i)
		f, _, err := w.mounts.open(field, m.Source, m.Writable)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		f.Close()
		if err != nil {
			return nil, mountDenied(field, "%s: %v", m.Source, err)
		}
		list = append(list, binding{Field: field, Source: m.Source, Target: m.Target, Writable: m.Writable, Dir: info.IsDir()})
	}
	return list, nil
}
