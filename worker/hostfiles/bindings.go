package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Binding is one path of the host that is mounted in a sandbox. The sandbox's create chooses the bindings. Each start
// mounts the same bindings, after resolving and checking their sources again.
//
// When the container starts, the engine opens the source of a mount by its name. After the worker's check, a process
// that can write to the source's directory could still put a link in place of the source. The engine therefore gets the
// name of a link in the sandbox's directory. Before and after a start, this link leads to an empty placeholder. The
// placeholder protects the host from files that are copied into the container, and from a start of the container
// without the worker. During a start, the link leads to the source, which the worker keeps open. Before the supervisor
// may run a command, the worker compares the mounted files with the files that it has opened.
type Binding struct {
	Field    string `json:"field"`            // field of the spec, for error messages
	Source   string `json:"source,omitempty"` // path on the host, as the spec names it
	Tool     string `json:"tool,omitempty"`   // name of a tool's mount; "": a mount of the spec
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
	Dir      bool   `json:"dir,omitempty"`      // the source is a directory
	Shadow   bool   `json:"shadow,omitempty"`   // the source is a copy in the sandbox's directory
	Optional bool   `json:"optional,omitempty"` // the tool works without this mount
}

// Bindings are all bindings of a sandbox, as they are stored in its directory.
type Bindings struct {
	List []Binding         `json:"bindings,omitempty"`
	Env  map[string]string `json:"env,omitempty"` // environment variables that tell programs where the files are
}

const bindingsFile = "bindings"

func linkDir(d hostdir.Dir) string            { return filepath.Join(d.Path, "mounts") }
func link(d hostdir.Dir, i int) string        { return filepath.Join(linkDir(d), strconv.Itoa(i)) }
func placeholder(d hostdir.Dir, i int) string { return link(d, i) + ".empty" }

// unverifiedFile returns the path of a file that exists from before a start until the container's mounts are verified.
func unverifiedFile(d hostdir.Dir) string { return filepath.Join(d.Path, "unverified") }

// Unverified reports whether a container was started, but its mounts have not been verified since.
func Unverified(d hostdir.Dir) bool {
	_, err := os.Stat(unverifiedFile(d))
	return err == nil
}

// load reads the bindings that a create chose. ok is false if the create has not chosen them yet, or if an old version
// of the worker, which did not store bindings, made the sandbox.
func load(d hostdir.Dir) (b Bindings, ok bool, err error) {
	data, err := os.ReadFile(filepath.Join(d.Path, bindingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return b, false, nil
	}
	if err == nil {
		err = protocol.Decode(data, &b)
	}
	if err != nil {
		return b, false, hosterr.Wrap(err, "read a sandbox's mounts")
	}
	return b, true, nil
}

// save creates the placeholders and stores the bindings.
func (b Bindings) save(d hostdir.Dir) error {
	err := os.MkdirAll(linkDir(d), 0o700)
	for i, one := range b.List {
		err = errors.Join(err, hide(d, i, one))
	}
	if err == nil {
		err = d.WriteFile(bindingsFile, protocol.Encode(&b))
	}
	if err != nil {
		return hosterr.Wrap(err, "store a sandbox's mounts")
	}
	return nil
}

// hide points a link to its placeholder, and creates the placeholder if it is missing.
func hide(d hostdir.Dir, i int, b Binding) error {
	empty := placeholder(d, i)
	var err error
	if b.Dir {
		err = os.MkdirAll(empty, 0o555)
	} else {
		var f *os.File
		if f, err = os.OpenFile(empty, os.O_CREATE|os.O_RDONLY, 0o444); err == nil {
			err = f.Close()
		}
	}
	return errors.Join(err, point(d, i, filepath.Base(empty)))
}

// hide points all links to their placeholders.
func (b Bindings) hide(d hostdir.Dir) error {
	var errs []error
	for i, one := range b.List {
		errs = append(errs, hide(d, i, one))
	}
	if err := errors.Join(errs...); err != nil {
		return hosterr.Wrap(err, "hide the sources of mounts")
	}
	return nil
}

// point changes the target of a link atomically.
func point(d hostdir.Dir, i int, to string) error {
	tmp := link(d, i) + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Symlink(to, tmp), os.Rename(tmp, link(d, i)))
}

// Binds returns the bindings as mounts of a container. Their sources are the links. The mounts are not recursive: file
// systems that are mounted below a source are not checked, and the engine would leave them writable in a read-only
// mount.
func (b Bindings) Binds(d hostdir.Dir) []docker.Bind {
	var binds []docker.Bind
	for i, one := range b.List {
		binds = append(binds, docker.Bind{
			Source: link(d, i), Target: one.Target, ReadOnly: !one.Writable, NonRecursive: true,
		})
	}
	return binds
}
