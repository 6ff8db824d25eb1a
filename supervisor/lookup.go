package supervisor

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// unrunnable is the error of a command that cannot be run. A shell would print the message, and exit with 127 or 126.
type unrunnable struct {
	code    int
	message string
}

func (u *unrunnable) Error() string { return u.message }

func notFound(format string, args ...any) error {
	return &unrunnable{127, fmt.Sprintf(format, args...)}
}
func notExecutable(format string, args ...any) error {
	return &unrunnable{126, fmt.Sprintf(format, args...)}
}

// lookup checks the working directory and finds the program, with the account's permissions. PID 1 runs as root without
// capabilities over files, so the account may be able to reach files that PID 1 cannot reach, and the other way round.
// The returned path must be executed from cwd.
//
// Only the current thread gets the account's permissions, only for a moment, and only for files (fsuid and fsgid). So
// no other process of the account can signal or trace the thread.
func lookup(acct account, cwd, program, search string) (path string, err error) {
	if acct.uid == 0 && acct.gid == 0 && len(acct.groups) == 0 {
		return find(cwd, program, search)
	}
	runtime.LockOSThread()
	restore, err := assume(acct)
	if err != nil {
		return "", err // the thread stays locked to the goroutine, and ends with it
	}
	path, findErr := find(cwd, program, search)
	if err := restore(); err != nil {
		return "", err
	}
	runtime.UnlockOSThread()
	return path, findErr
}

// assume gives the calling thread the account's file system permissions.
func assume(acct account) (restore func() error, err error) {
	if err := setGroups(acct.groups); err != nil {
		return nil, err
	}
	setFS(acct.uid, acct.gid)
	return func() error {
		setFS(0, 0)
		return setGroups(nil)
	}, nil
}

// setFS sets fsuid and fsgid of the calling thread. The kernel reports no errors for these calls. They cannot fail in a
// process with CAP_SETUID and CAP_SETGID.
func setFS(uid, gid uint32) {
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
}

// setGroups sets the supplementary groups of the calling thread only.
func setGroups(groups []uint32) error {
	gids := make([]int, len(groups))
	for i, g := range groups {
		gids[i] = int(g)
	}
	if err := unix.Setgroups(gids); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	return nil
}

func find(cwd, program, search string) (string, error) {
	if err := checkDirectory(cwd); err != nil {
		return "", err
	}
	if strings.Contains(program, "/") {
		return program, checkProgram(cwd, program)
	}
	refused := notFound("%.200s: command not found", program)
	if program == "" {
		return "", refused
	}
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		path := dir + "/" + program
		err := checkProgram(cwd, path)
		if err == nil {
			return path, nil
		}
		if u := (*unrunnable)(nil); errors.As(err, &u) && u.code == 126 {
			refused = err
		}
	}
	return "", refused
}

// checkDirectory checks what chdir would check: cwd is a directory, and the thread has search permission.
func checkDirectory(cwd string) error {
	var stat unix.Stat_t
	err := unix.Stat(cwd+"/.", &stat)
	if err == nil {
		return nil
	}
	reason := err.Error()
	switch err {
	case unix.ENOENT:
		reason = "does not exist"
	case unix.ENOTDIR:
		reason = "is not a directory"
	}
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCwdInvalid, "working directory %.200q: %s", cwd,
		reason)
	e.Field = "spec.cwd"
	return e
}

func checkProgram(cwd, path string) error {
	full := path
	if !strings.HasPrefix(path, "/") {
		full = cwd + "/" + path
	}
	var stat unix.Stat_t
	if err := unix.Stat(full, &stat); err != nil {
		return execFailure(path, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return notExecutable("%.200s: is a directory", path)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, full, unix.X_OK, unix.AT_EACCESS); err != nil {
		return execFailure(path, err)
	}
	return nil
}

// execFailure translates an error of stat or execve in the same way as a shell.
func execFailure(path string, err error) error {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG:
		return notFound("%.200s: not found", path)
	case unix.EACCES:
		return notExecutable("%.200s: permission denied", path)
	case unix.ENOEXEC:
		return notExecutable("%.200s: cannot execute: unknown format", path)
	case unix.E2BIG:
		return notExecutable("%.200s: argument list too long", path)
	case unix.ETXTBSY, unix.EISDIR, unix.ELIBBAD, unix.EIO:
		return notExecutable("%.200s: %v", path, err)
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonStartFailed,
			"start %.200q: %v (the sandbox has reached its limit of processes, memory or open files)", path, err)
	default:
		return protocol.Errorf(protocol.Internal, protocol.ReasonStartFailed, "start %.200q: %v", path, err)
	}
}
