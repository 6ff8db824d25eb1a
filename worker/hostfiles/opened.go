package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// Opened has the open sources of a sandbox's bindings, for one start of its container. Call Show, start the container,
// and then call Hide, Verify and Close.
type Opened struct {
	dir      hostdir.Dir
	bindings Bindings
	files    []*os.File
	real     []string // resolved paths of files
}

// Show points the links to the sources. The sandbox then counts as unverified until Verify succeeds.
func (o *Opened) Show() error {
	if len(o.files) == 0 {
		return nil
	}
	err := os.WriteFile(unverifiedFile(o.dir), nil, 0o600)
	for i, real := range o.real {
		err = errors.Join(err, point(o.dir, i, real))
	}
	if err != nil {
		return hosterr.Wrap(err, "point the links to the sources of mounts")
	}
	return nil
}

// Hide points the links to their placeholders again. The sources stay open.
func (o *Opened) Hide() error { return o.bindings.hide(o.dir) }

// Close closes the sources. It may be called on nil, and more than once.
func (o *Opened) Close() {
	if o == nil {
		return
	}
	for _, f := range o.files {
		f.Close()
	}
	o.files = nil
}

// Verify compares the open sources with the mounts of a container that has just started. pid is the container's
// supervisor, which runs no command before it is connected to the worker. A worker that is not root checks nothing.
func (o *Opened) Verify(pid int) error {
	if len(o.files) == 0 || !CanVerify() {
		return nil
	}
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, protocol.ReasonMountDenied, "inspect a container's mounts: %v", err)
	}
	defer root.Close()
	for i, f := range o.files {
		b := o.bindings.List[i]
		if err := sameMount(root, b, f); err != nil {
			return mountDenied(b.Field, "%s in the container is not the requested mount: %v", b.Target, err)
		}
	}
	if err := os.Remove(unverifiedFile(o.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hosterr.Wrap(err, "record that mounts were verified")
	}
	return nil
}

// sameMount returns an error if a container's mount is not the open source. It resolves the target inside the
// container's root.
func sameMount(root *os.File, b Binding, source *os.File) error {
	mounted, err := openPath(int(root.Fd()), b.Target, unix.RESOLVE_IN_ROOT)
	if err != nil {
		return err
	}
	defer mounted.Close()
	want, err := source.Stat()
	if err != nil {
		return err
	}
	got, err := mounted.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(want, got) {
		return errors.New("its source was replaced while the container started")
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(mounted.Fd()), &system); err != nil {
		return err
	}
	if !b.Writable && system.Flags&unix.ST_RDONLY == 0 {
		return errors.New("it is writable")
	}
	return nil
}
