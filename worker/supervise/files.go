package supervise

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// passed are open files that are sent to a supervisor. They are closed when their last holder releases them. If a
// descriptor were closed too early, the same number could refer to another file by the time it is sent.
type passed struct {
	fds     []int
	holders atomic.Int32
}

func newPassed(fds []int) *passed {
	p := &passed{fds: fds}
	p.holders.Store(1)
	return p
}

func (p *passed) hold() *passed {
	if p != nil {
		p.holders.Add(1)
	}
	return p
}

func (p *passed) count() int {
	if p == nil {
		return 0
	}
	return len(p.fds)
}

func (p *passed) release() {
	if p != nil && p.holders.Add(-1) == 0 {
		closeAll(p.fds)
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// outFiles opens the files that a sandbox's supervisor writes.
type outFiles struct {
	mu             sync.RWMutex // only close locks mu for writing
	execs, primary int          // descriptors of directories; 0: closed
	sets           *sets
}

// fileNames are the names of an exec's files, in the order in which [control.Start] sends the files.
var fileNames = [control.ExecFiles]string{control.StdoutName, control.StderrName, control.RecordName}

// errLinkClosed is the error of calls after [Link.Close].
var errLinkClosed = protocol.Errorf(protocol.Unavailable, "", "the link to the supervisor is closed")

func openOutFiles(run *os.Root) (*outFiles, error) {
	root, err := run.Open(".")
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "open the run directory: %v", err)
	}
	defer root.Close()
	o := &outFiles{}
	if o.execs, err = makeDirectory(int(root.Fd()), control.ExecsDir); err != nil {
		return nil, err
	}
	if o.primary, err = makeDirectory(int(root.Fd()), control.PrimaryDir); err != nil {
		unix.Close(o.execs)
		return nil, err
	}
	if o.sets, err = openSets(o.execs); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *outFiles) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.execs != 0 {
		o.sets.close()
		closeAll([]int{o.execs, o.primary})
		o.execs, o.primary = 0, 0
	}
}

// exec opens the files of an exec, and creates missing ones. The result has the order of [control.Start].
//
// The files are not in a directory of their own, because on ext4, creating a directory takes 30 times as long as
// creating a file.
func (o *outFiles) exec(id string) (*passed, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.execs == 0 {
		return nil, errLinkClosed
	}
	return o.sets.open(id)
}

// command opens the files of the primary command, and creates missing ones. The result has the order of
// [control.Welcome].
func (o *outFiles) command() (*passed, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.execs == 0 {
		return nil, errLinkClosed
	}
	return makeFiles(o.primary, control.StdoutName, control.StderrName)
}

// remove removes the files of an exec, including files that an older supervisor created. It may instead keep the files
// for another exec, see [sets.giveBack].
func (o *outFiles) remove(run *os.Root, id string, forgotten bool) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.execs != 0 && o.sets.giveBack(id, forgotten) {
		return nil
	}
	if err := protocol.ValidateID("exec_id", id); err != nil {
		return err
	}
	if o.execs == 0 {
		return RemoveExec(run, id)
	}
	removeFiles(o.execs, id)
	if err := unix.Unlinkat(o.execs, id, unix.AT_REMOVEDIR); err == nil || err == unix.ENOENT {
		return nil
	}
	return RemoveExec(run, id)
}

func makeFiles(dir int, names ...string) (*passed, error) {
	var fds []int
	for _, name := range names {
		fd, err := makeFile(dir, name)
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return newPassed(fds), nil
}

// makeFile opens a regular file for writing, and creates it if it is missing. In the run directory of an older
// supervisor, the name may belong to something that is not a regular file; makeFile then fails.
func makeFile(dir int, name string) (int, error) {
	fd, err := unix.Openat(
		dir,
		name,
		unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC,
		0o600,
	)
	if err != nil {
		return 0, notMade(name, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink != 1 {
		unix.Close(fd)
		return 0, hostile(name, "is not a regular file, or has several names")
	}
	return fd, nil
}

func makeDirectory(parent int, name string) (int, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && err != unix.EEXIST {
		return 0, notMade(name, err)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, notMade(name, err)
	}
	return fd, nil
}

func notMade(name string, err error) error {
	switch {
	case err == unix.ELOOP, err == unix.ENOTDIR, err == unix.ENXIO, err == unix.EISDIR:
		return hostile(name, "is not the file or directory that the worker created")
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return protocol.Errorf(protocol.Unavailable, "", "create %s in the run directory: %v", name, err)
	}
	reason := ""
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		reason = protocol.ReasonDiskFull
	}
	return protocol.Errorf(protocol.ResourceExhausted, reason, "create %s in the run directory: %v", name, err)
}
