package supervisor

import (
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// defaultPath lists the directories in which programs are searched for if the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command describes a process to start.
type command struct {
	argv  []string
	env   map[string]string // added to the supervisor's environment
	cwd   string
	user  string
	group uint32 // the supplementary group by which the command's processes are found
	stdin []byte
	open  bool // stdin is a pipe that stays open
}

// process is a started command: the main process, and the read ends of the pipes for its output.
type process struct {
	*child
	stdin          *os.File // the write end, if stdin is a pipe
	stdout, stderr *os.File
}

// launcher starts processes.
type launcher struct {
	environ  map[string]string // the supervisor's environment, which comes from the image and the spec
	accounts accounts
	reaper   *reaper
	null     *os.File
	starting slots
	nextID   atomic.Uint32 // number of groups given out
	base     uint32
}

func newLauncher(groups uint32, r *reaper) (*launcher, error) {
	// The device is opened only once, because an exec that runs as root may later replace it.
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	l := &launcher{
		environ:  map[string]string{},
		accounts: newAccounts("/etc/passwd", "/etc/group", groups),
		reaper:   r,
		null:     null,
		starting: make(slots, startSlots),
		base:     groups,
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		l.environ[name] = value
	}
	if root, _ := l.accounts.user("0"); l.environ["HOME"] == root.home {
		delete(l.environ, "HOME") // the container runtime set HOME for PID 1; the value does not come from the image
	}
	return l, nil
}

// group returns a group that no process of this boot has had.
func (l *launcher) group() uint32 { return l.base + l.nextID.Add(1) - 1 }

// start starts a command. The error is an *unrunnable if a shell would exit with 127 or 126. Otherwise
// the error is a *protocol.Error.
func (l *launcher) start(c command) (*process, error) {
	if err := checkStrings(c); err != nil {
		return nil, err
	}
	l.starting.acquire()
	defer l.starting.release()
	acct, refused := l.accounts.resolve(c.user)
	if refused != nil {
		return nil, refused
	}
	env, search := l.environment(c.env, acct)
	path, err := lookup(acct, c.cwd, c.argv[0], search)
	if err != nil {
		return nil, startError(path, err)
	}
	return l.fork(c, path, env, acct)
}

func (l *launcher) fork(c command, path string, env []string, acct account) (*process, error) {
	var pipes stdio
	defer pipes.closeChildEnds()
	if err := pipes.open(c, l.null); err != nil {
		pipes.closeOurEnds()
		return nil, startError(path, err)
	}
	child, err := l.reaper.start(path, c.argv, &syscall.ProcAttr{
		Dir:   c.cwd,
		Env:   env,
		Files: []uintptr{uintptr(pipes.stdin), uintptr(pipes.out[1]), uintptr(pipes.err[1])},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			Credential: &syscall.Credential{
				Uid:    acct.uid,
				Gid:    acct.gid,
				Groups: append(slices.Clip(acct.groups), c.group),
			},
		},
	}, c.group)
	if err != nil {
		pipes.closeOurEnds()
		return nil, execFailure(path, err)
	}
	p := &process{
		child:  child,
		stdout: os.NewFile(uintptr(pipes.out[0]), "stdout"),
		stderr: os.NewFile(uintptr(pipes.err[0]), "stderr"),
	}
	if c.open {
		p.stdin = os.NewFile(uintptr(pipes.in), "stdin")
	}
	return p, nil
}

// startError turns any error into an *unrunnable or a *protocol.Error.
func startError(path string, err error) error {
	switch err.(type) {
	case *unrunnable, *protocol.Error:
		return err
	}
	if errno, ok := err.(syscall.Errno); ok {
		return execFailure(path, errno)
	}
	return protocol.Errorf(protocol.Internal, protocol.ReasonStartFailed, "start %.200q: %v", path, err)
}

// checkStrings refuses strings that execve cannot pass to a program.
func checkStrings(c command) error {
	if len(c.argv) == 0 {
		return protocol.Invalid("spec.command", "must not be empty")
	}
	for _, s := range append(slices.Clone(c.argv), c.cwd) {
		if strings.ContainsRune(s, 0) {
			return protocol.Invalid("spec.command", "must not contain a NUL byte")
		}
	}
	for name, value := range c.env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return protocol.Invalid(
				"spec.env",
				"%.80q is not a name of an environment variable, or its value has a NUL byte",
				name,
			)
		}
	}
	return nil
}

// environment returns the environment of a command: the supervisor's environment, overridden by the given variables.
// HOME and USER come from the account if they are not set otherwise. The second result is the value of PATH.
func (l *launcher) environment(over map[string]string, acct account) (env []string, search string) {
	env = make([]string, 0, len(l.environ)+len(over)+3)
	search = defaultPath
	given := func(name, value string) {
		if name == "PATH" {
			search = value
		}
		env = append(env, name+"="+value)
	}
	for name, value := range l.environ {
		if _, replaced := over[name]; !replaced && name != "USER" {
			given(name, value)
		}
	}
	for name, value := range over {
		given(name, value)
	}
	if _, ok := over["HOME"]; !ok && l.environ["HOME"] == "" {
		given("HOME", acct.home)
	}
	if _, ok := over["USER"]; !ok {
		user := l.environ["USER"]
		if user == "" {
			user = acct.name
		}
		given("USER", user)
	}
	return env, search
}

// stdio has the files for stdin, stdout and stderr of a process. out and err are pipes: {the supervisor's end, the
// process's end}.
type stdio struct {
	stdin    int
	ownStdin bool
	in       int // the supervisor's end of stdin, if it is a pipe
	out, err [2]int
}

// open creates the pipes, and a file with the bytes for stdin. A pipe for these bytes would need a goroutine that
// writes to it; a file does not.
func (p *stdio) open(c command, null *os.File) error {
	p.out, p.err = [2]int{-1, -1}, [2]int{-1, -1}
	p.stdin = int(null.Fd())
	for _, pipe := range []*[2]int{&p.out, &p.err} {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		if err := unix.SetNonblock(pipe[0], true); err != nil { // the command's end stays blocking
			return err
		}
	}
	switch {
	case c.open:
		return p.openInput()
	case len(c.stdin) > 0:
		return p.fillInput(c.stdin)
	}
	return nil
}

// openInput makes stdin a pipe.
func (p *stdio) openInput() error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	p.stdin, p.ownStdin, p.in = pipe[0], true, pipe[1]
	return unix.SetNonblock(p.in, true) // the command's end stays blocking
}

// fillInput makes stdin a file with the given bytes.
func (p *stdio) fillInput(stdin []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	p.stdin, p.ownStdin = fd, true
	for written := 0; written < len(stdin); {
		n, err := unix.Write(fd, stdin[written:])
		if err != nil {
			return err
		}
		written += n
	}
	_, err = unix.Seek(fd, 0, unix.SEEK_SET)
	return err
}

func (p *stdio) closeChildEnds() {
	closeFD(p.out[1])
	closeFD(p.err[1])
	if p.ownStdin {
		closeFD(p.stdin)
	}
}

func (p *stdio) closeOurEnds() {
	closeFD(p.in)
	closeFD(p.out[0])
	closeFD(p.err[0])
}

func closeFD(fd int) {
	if fd > 0 {
		unix.Close(fd)
	}
}
