package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// toolbox finds the files of builtin tools on this host, of those that its operator offers.
type toolbox struct {
	offered []string
	home    string // of the worker's user
	agent   string // address of its ssh agent's socket
	policy  *mountPolicy

	verifies bool // what was mounted in the end can be seen
}

// allTools stands for every tool in the operator's list.
const allTools = "all"

func newToolbox(offered []string, home, agent string, policy *mountPolicy) (*toolbox, error) {
	t := &toolbox{home: home, agent: agent, policy: policy, verifies: canVerify()}
	for i, name := range offered {
		if name == allTools {
			t.offered = ToolNames()
			break
		}
		if !slices.Contains(ToolNames(), name) {
			return nil, protocol.Invalid(fmt.Sprintf("tools[%d]", i), "must be %s or %s, got %.40q", allTools, strings.Join(ToolNames(), ", "), name)
		}
		t.offered = append(t.offered, name)
	}
	if len(t.offered) > 0 && !filepath.IsAbs(home) {
		return nil, protocol.Invalid("tools_home", "must be an absolute path, got %.80q", home)
	}
	return t, nil
}

// ToolNames lists the builtin tools.
func ToolNames() []string {
	var names []string
	for _, t := range tools {
		names = append(names, t.name)
	}
	return names
}

// FoundTools lists the builtin tools of which a user has anything.
func FoundTools(home, agent string) []string {
	policy, err := newMountPolicy(nil, nil)
	if err != nil {
		return nil
	}
	box, err := newToolbox([]string{allTools}, home, agent, policy)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(box.usable(), func(name string) bool {
		return !slices.ContainsFunc(findTool(name).uses, func(u toolUse) bool { return box.has(u.mount) })
	})
}

func findTool(name string) *tool {
	for i := range tools {
		if tools[i].name == name {
			return &tools[i]
		}
	}
	return nil
}

func findToolMount(name string) *toolMount {
	for i := range toolMounts {
		if toolMounts[i].name == name {
			return &toolMounts[i]
		}
	}
	return nil
}

// usable lists the offered tools that work here, and of which everything that is required is there.
func (t *toolbox) usable() []string {
	var names []string
	for _, name := range t.offered {
		missing := slices.ContainsFunc(findTool(name).uses, func(u toolUse) bool { return u.required && !t.has(u.mount) })
		if !missing && t.works(name) {
			names = append(names, name)
		}
	}
	return names
}

func (t *toolbox) has(mount string) bool {
	f, _, err := t.open("", mount)
	if f != nil {
		f.Close()
	}
	return err == nil
}

// works says whether the worker may mount what a tool needs, and anything of it at all.
func (t *toolbox) works(name string) bool {
	any, all := false, true
	for _, u := range findTool(name).uses {
		trusted := t.trusts(findToolMount(u.mount))
		any, all = any || trusted, all && (trusted || !u.required)
	}
	return any && all
}

// trusts says whether a mount may be made here. A worker that cannot see what was mounted in the end
// makes none that can be written, or connected to: as with those of the allow-list, a source that was
// exchanged would be somebody else's.
func (t *toolbox) trusts(m *toolMount) bool { return t.verifies || m.mode == toolReadOnly }

// Why a mount is left out.
var (
	errNoTool     = errors.New("is not there")
	errUnverified = errors.New("only a worker that runs as root mounts writable, or as a socket")
)

// open opens the source of a tool's mount as it is now. errNoTool is for one that is not there,
// errUnverified for one that is not mounted here; one that is there and cannot be mounted is an error
// that names field.
func (t *toolbox) open(field, name string) (*os.File, string, error) {
	m := findToolMount(name)
	if m == nil {
		return nil, "", toolUnavailable(field, "%.40q is the mount of no tool", name)
	}
	if !t.trusts(m) {
		return nil, "", errUnverified
	}
	f, real, err := t.find(m)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, "", errNoTool
	}
	if err == nil {
		if err = t.judge(m, f, real); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, "", mountDenied(field, "%s %v", m.name, err)
	}
	return f, real, nil
}

// find opens a source below the home directory, or the socket. Links are followed, but not out of
// the home directory.
func (t *toolbox) find(m *toolMount) (*os.File, string, error) {
	if m.mode == toolSocket {
		if !filepath.IsAbs(t.agent) {
			return nil, "", fs.ErrNotExist
		}
		real, err := filepath.EvalSymlinks(t.agent)
		if err != nil {
			return nil, "", err
		}
		f, err := openPath(unix.AT_FDCWD, real, unix.RESOLVE_NO_SYMLINKS)
		return f, real, err
	}
	home, err := filepath.EvalSymlinks(t.home)
	if err != nil {
		return nil, "", err
	}
	real, err := filepath.EvalSymlinks(filepath.Join(home, m.source))
	if err != nil {
		return nil, "", err
	}
	if !below(real, home) || real == home {
		return nil, "", fmt.Errorf("leads out of %s, to %s", t.home, real)
	}
	f, err := openBelow(home, real)
	return f, real, err
}

func (t *toolbox) judge(m *toolMount, f *os.File, real string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case m.mode == toolSocket && info.Mode().Type() != fs.ModeSocket:
		return errors.New("is no socket")
	case m.mode != toolSocket && m.file && !info.Mode().IsRegular():
		return errors.New("is no regular file")
	case m.mode != toolSocket && !m.file && !info.IsDir():
		return errors.New("is no directory")
	}
	return t.policy.forbids(f, info, real)
}

func toolUnavailable(field, format string, args ...any) *protocol.Error {
	return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonToolUnavailable, Field: field, Message: fmt.Sprintf(format, args...)}
}

// needHome says whether any of the tools has a mount in the home directory of the sandbox's user.
func needHome(names []string) bool {
	inHome := func(u toolUse) bool {
		target := findToolMount(u.mount).target
		return target != "" && !path.IsAbs(target)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		t := findTool(name)
		return t != nil && slices.ContainsFunc(t.uses, inHome)
	})
}

// plan chooses the bindings for a spec's tools, each mount once however many of them have it, and
// the environment that programs find them by. home is that of the sandbox's user. Where a copy is
// to be made, it is made below d.
func (t *toolbox) plan(spec *protocol.SandboxSpec, home string, d directory) (list []binding, env map[string]string, err error) {
	env = map[string]string{}
	planned := map[string]bool{}
	for i, name := range spec.Tools {
		field := fmt.Sprintf("spec.tools[%d]", i)
		if err := t.check(field, name); err != nil {
			return nil, nil, err
		}
		for _, use := range findTool(name).uses {
			if planned[use.mount] {
				continue
			}
			b, err := t.bind(field, findToolMount(use.mount), home, d)
			if errors.Is(err, errNoTool) || errors.Is(err, errUnverified) {
				if use.required {
					return nil, nil, toolUnavailable(field, "%s needs %s, which the host does not have", name, use.mount)
				}
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			if err := vacant(spec, b); err != nil {
				return nil, nil, err
			}
			planned[use.mount], b.Optional = true, !use.required
			list = append(list, *b)
			if variable := findToolMount(use.mount).env; variable != "" {
				env[variable] = b.Target
			}
		}
	}
	return list, env, nil
}

func (t *toolbox) check(field, name string) error {
	switch {
	case findTool(name) == nil:
		return toolUnavailable(field, "there is no tool %.40q; there are %s", name, strings.Join(ToolNames(), ", "))
	case !slices.Contains(t.offered, name):
		return toolUnavailable(field, "the host does not offer %s", name)
	case !t.works(name):
		return toolUnavailable(field, "%s needs files that %v", name, errUnverified)
	}
	return nil
}

// bind chooses the binding of one mount.
func (t *toolbox) bind(field string, m *toolMount, home string, d directory) (*binding, error) {
	f, real, err := t.open(field, m.name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := &binding{Field: field, Tool: m.name, Target: m.target, Writable: m.mode != toolReadOnly, Dir: !m.file && m.mode != toolSocket}
	switch {
	case m.target == "":
		b.Target = filepath.Join(t.home, m.source)
	case !path.IsAbs(m.target):
		b.Target = path.Join(home, m.target)
	}
	if !m.shadow {
		return b, nil
	}
	if b.Shadow, err = shadow(f, d.shadow(m.name)); err != nil {
		return nil, mountDenied(field, "%s cannot be copied for the sandbox: %v", real, err)
	}
	return b, nil
}

// vacant refuses a tool's mount where the spec has put something else.
func vacant(spec *protocol.SandboxSpec, b *binding) error {
	if err := protocol.ValidateTarget(b.Field, b.Target); err != nil {
		return err
	}
	for i, m := range spec.Mounts {
		if path.Clean(m.Target) == b.Target {
			return protocol.Invalid(b.Field, "%s would be mounted at %s, and so would spec.mounts[%d]", b.Tool, b.Target, i)
		}
	}
	for i, m := range spec.Tmpfs {
		if path.Clean(m.Target) == b.Target {
			return protocol.Invalid(b.Field, "%s would be mounted at %s, and so would spec.tmpfs[%d]", b.Tool, b.Target, i)
		}
	}
	for i, c := range spec.Copies {
		if c.Service == "" && below(path.Clean(c.Target), b.Target) {
			return protocol.Invalid(b.Field, "%s at %s would hide spec.copies[%d]", b.Tool, b.Target, i)
		}
	}
	return nil
}
