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

// Toolbox finds the files of the builtin tools that the operator of this host offers.
type Toolbox struct {
	offered []string
	home    string // home directory of the worker's user
	agent   string // address of the socket of this user's ssh agent
	policy  *Policy

	verifies bool // the process can verify mounts; see CanVerify
}

// allTools, as an entry of the operator's list, offers every builtin tool.
const allTools = "all"

// NewToolbox returns a toolbox. The parameter offered lists the tools that the operator offers, home is the directory
// with the tools' files, and agent is the address of the ssh agent's socket, or "". The error is invalid_argument.
func NewToolbox(offered []string, home, agent string, policy *Policy) (*Toolbox, error) {
	t := &Toolbox{home: home, agent: agent, policy: policy, verifies: CanVerify()}
	for i, name := range offered {
		if name == allTools {
			t.offered = ToolNames()
			break
		}
		if !slices.Contains(ToolNames(), name) {
			field := fmt.Sprintf("tools[%d]", i)
			return nil, protocol.Invalid(field, "must be %s or %s, got %.40q", allTools, strings.Join(ToolNames(), ", "), name)
		}
		t.offered = append(t.offered, name)
	}
	if len(t.offered) > 0 && !filepath.IsAbs(home) {
		return nil, protocol.Invalid("tools_home", "must be an absolute path, got %.80q", home)
	}
	return t, nil
}

// FoundTools lists the builtin tools that have at least one file in a user's home directory.
func FoundTools(home, agent string) []string {
	policy, err := NewPolicy(nil, nil)
	if err != nil {
		return nil
	}
	box, err := NewToolbox([]string{allTools}, home, agent, policy)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(box.Usable(), func(name string) bool {
		return !slices.ContainsFunc(findTool(name).uses, func(u toolUse) bool { return box.has(u.mount) })
	})
}

// Usable lists the offered tools that work on this host and whose required files exist.
func (t *Toolbox) Usable() []string {
	var names []string
	for _, name := range t.offered {
		missing := slices.ContainsFunc(findTool(name).uses, func(u toolUse) bool { return u.required && !t.has(u.mount) })
		if !missing && t.works(name) {
			names = append(names, name)
		}
	}
	return names
}

func (t *Toolbox) has(mount string) bool {
	f, _, err := t.open("", mount)
	if f != nil {
		f.Close()
	}
	return err == nil
}

// works reports whether the worker may mount all files that a tool requires. If the tool requires none, one of its
// optional files is enough.
func (t *Toolbox) works(name string) bool {
	some, required := false, true
	for _, u := range findTool(name).uses {
		may := t.mayMount(findToolMount(u.mount))
		some, required = some || may, required && (may || !u.required)
	}
	return some && required
}

// mayMount reports whether the worker may mount a tool's file on this host. A worker that cannot verify mounts must not
// mount writable files or sockets, because the source could be replaced with any other file of the host.
func (t *Toolbox) mayMount(m *toolMount) bool { return t.verifies || m.mode == toolReadOnly }

// check refuses a tool that does not exist, is not offered, or does not work on this host.
func (t *Toolbox) check(field, name string) error {
	switch {
	case findTool(name) == nil:
		return toolUnavailable(field, "there is no tool %.40q; the tools are %s", name, strings.Join(ToolNames(), ", "))
	case !slices.Contains(t.offered, name):
		return toolUnavailable(field, "the host does not offer %s", name)
	case !t.works(name):
		return toolUnavailable(field, "%s needs files that %v", name, errUnverified)
	}
	return nil
}

// Reasons why a mount is left out. The caller puts the name of the mount before these texts.
var (
	errNoTool     = errors.New("does not exist")
	errUnverified = errors.New("only a worker that runs as root may mount (writable files and sockets)")
)

// open resolves, opens and checks the source of a tool's mount. The error is errNoTool if the source does not exist,
// and errUnverified if the worker must not mount it. Any other error names the given field of the spec.
func (t *Toolbox) open(field, name string) (*os.File, string, error) {
	m := findToolMount(name)
	if m == nil {
		return nil, "", toolUnavailable(field, "no tool has a mount %.40q", name)
	}
	if !t.mayMount(m) {
		return nil, "", errUnverified
	}
	f, real, err := t.find(m)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, "", errNoTool
	}
	if err == nil {
		if err = t.checkSource(m, f, real); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, "", mountDenied(field, "%s %v", m.name, err)
	}
	return f, real, nil
}

// find opens the source of a tool's mount: a path below the home directory, or the ssh agent's socket. It follows
// links, but not out of the home directory.
func (t *Toolbox) find(m *toolMount) (*os.File, string, error) {
	if m.mode == toolSocket {
		return t.findAgent()
	}
	home, err := filepath.EvalSymlinks(t.home)
	if err != nil {
		return nil, "", err
	}
	real, err := filepath.EvalSymlinks(filepath.Join(home, m.source))
	if err != nil {
		return nil, "", err
	}
	if !isBelow(real, home) || real == home {
		return nil, "", fmt.Errorf("is a link that leads out of %s, to %s", t.home, real)
	}
	f, err := openBelow(home, real)
	return f, real, err
}

func (t *Toolbox) findAgent() (*os.File, string, error) {
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

// checkSource returns an error if an open source must not be mounted. The caller puts the name of the mount before the
// text of the error.
func (t *Toolbox) checkSource(m *toolMount, f *os.File, real string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case m.mode == toolSocket && info.Mode().Type() != fs.ModeSocket:
		return errors.New("is not a socket")
	case m.mode != toolSocket && m.file && !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case m.mode != toolSocket && !m.file && !info.IsDir():
		return errors.New("is not a directory")
	}
	return t.policy.forbids(f, info, real)
}

func toolUnavailable(field, format string, args ...any) *protocol.Error {
	err := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonToolUnavailable, format, args...)
	err.Field = field
	return err
}
