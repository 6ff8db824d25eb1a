package supervisor

import (
	"errors"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// secretsVariable is the environment variable that tells an exec the directory of its files of secrets.
const secretsVariable = "BOXFLEET_SECRETS"

// secrets are the secrets of the container's spec, and the directory for files of secrets.
type secrets struct {
	dir    int               // descriptor of the file system in memory; 0: the container has none
	env    map[string]string // variables of every command in the container
	masked [][]byte          // values that are masked in the output of every command
	masks  *patterns         // the texts of masked; nil: none
}

// openSecrets opens the directory for files of secrets before any command runs. Commands of root may later rename or
// replace each file below it. The directory itself stays the one that the engine mounted.
func openSecrets(at string) secrets {
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return secrets{}
	}
	var system unix.Statfs_t
	var stat unix.Stat_t
	if unix.Fstatfs(fd, &system) != nil || system.Type != unix.TMPFS_MAGIC || unix.Fstat(fd, &stat) != nil ||
		stat.Gid != control.SecretsGroup {
		unix.Close(fd) // the image or the spec has its own directory there
		return secrets{}
	}
	// When a container starts again, runc gives the file system the mode of the directory in the container's layer.
	if err := unix.Fchmod(fd, 0o775); err != nil {
		unix.Close(fd)
		return secrets{}
	}
	return secrets{dir: fd}
}

// takeSecrets takes the container's secrets from the first Welcome, and writes their files.
func (s *supervisor) takeSecrets(w *control.Welcome) error {
	user := w.DefaultUser
	if user == "" {
		user = "0"
	}
	if _, err := s.writeSecrets("", w.Secrets, user); err != nil {
		return err
	}
	s.secrets.env, s.secrets.masked = splitSecrets(w.Secrets)
	s.secrets.masks = patternsOf(s.secrets.masked...)
	maps.Copy(s.launcher.environ, s.secrets.env)
	control.Wipe(w.Secrets)
	return nil
}

// takeSecrets writes the files of the exec's secrets. It returns the environment of the exec, and sets the exec's
// masks.
func (e *exec) takeSecrets(start *control.Start) (map[string]string, error) {
	if len(start.Secrets) == 0 {
		return start.Env, nil
	}
	var err error
	if e.secretFiles, err = e.s.writeSecrets(e.id, start.Secrets, start.User); err != nil {
		return nil, err
	}
	env, masked := splitSecrets(start.Secrets)
	maps.Copy(env, start.Env)
	if len(e.secretFiles) > 0 {
		env[secretsVariable] = path.Join(protocol.SecretsDir, e.id)
	}
	if len(masked) > 0 {
		e.masks = patternsOf(append(masked, e.s.secrets.masked...)...)
	}
	control.Wipe(start.Secrets)
	return env, nil
}

// splitSecrets returns copies of the variables and of the values to mask.
func splitSecrets(list []control.Secret) (env map[string]string, masked [][]byte) {
	env = map[string]string{}
	for _, one := range list {
		if one.Env != "" {
			env[one.Env] = string(one.Value.Bytes())
		}
		if one.Mask {
			masked = append(masked, slices.Clone(one.Value.Bytes()))
		}
	}
	return env, masked
}

// writeSecrets writes the files of secrets as the given user. The files of an exec are in a directory with the exec's
// id; for the container's secrets, exec is "". writeSecrets returns the files to remove later, even after an error.
//
// The supervisor of a hardened container may not change the owner of a file, and needs no permission to do so. A thread
// that acts as the user creates the file, so the file belongs to the user. For this moment, the thread is in the group
// of the directory, in which no command is ever.
func (s *supervisor) writeSecrets(exec string, list []control.Secret, user string) (written []string, err error) {
	files := slices.DeleteFunc(slices.Clone(list), func(one control.Secret) bool { return one.File == "" })
	if len(files) == 0 {
		return nil, nil
	}
	if s.secrets.dir == 0 {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the container has no file system in memory at %s: an older worker made it, or the image or the spec uses that "+
				"path itself; create the sandbox again, or give the secrets as environment variables", protocol.SecretsDir)
	}
	acct, refused := s.launcher.accounts.resolve(user)
	if refused != nil {
		return nil, refused
	}
	s.files.acquire()
	defer s.files.release()
	groupErr := inSecretsGroup(func() { written, err = s.secrets.write(exec, files, acct) })
	return written, errors.Join(err, groupErr)
}

// inSecretsGroup calls do on a thread that is in the group of the directory, and creates files in this group.
func inSecretsGroup(do func()) error {
	runtime.LockOSThread() // after an error, the thread stays locked to the goroutine, and ends with it
	if err := setGroups([]uint32{control.SecretsGroup}); err != nil {
		return err
	}
	setFS(0, control.SecretsGroup)
	do()
	setFS(0, 0)
	if err := setGroups(nil); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	return nil
}

func (s *secrets) write(exec string, files []control.Secret, acct account) (written []string, err error) {
	if exec != "" {
		if err := unix.Mkdirat(s.dir, exec, 0o700); err != nil {
			return nil, notWritten(exec, err)
		}
	}
	for _, one := range files {
		file := path.Join(exec, one.File)
		written = append(written, file)
		if err := s.writeFile(file, one.Value.Bytes(), acct); err != nil {
			return written, notWritten(file, err)
		}
	}
	return written, nil
}

// writeFile creates a file and the missing directories above it. It follows no link, and opens no file that exists.
func (s *secrets) writeFile(file string, value []byte, acct account) error {
	dir, name, err := s.parent(file, true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// A Welcome that failed may have left the file.
	if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	setFS(acct.uid, acct.gid)
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	setFS(0, control.SecretsGroup)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = writeAll(fd, value, 0)
	return err
}

// parent opens the directory of a file, and returns it with the file's name. With create, it makes missing directories.
// Everyone may search these directories. Only the supervisor and commands of root can change them.
func (s *secrets) parent(file string, create bool) (dir int, name string, err error) {
	parts := strings.Split(file, "/")
	if dir, err = unix.FcntlInt(uintptr(s.dir), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return 0, "", err
	}
	for i, part := range parts {
		if part == "" || part == "." || part == ".." {
			unix.Close(dir)
			return 0, "", unix.EINVAL
		}
		if i == len(parts)-1 {
			break
		}
		next, err := enter(dir, part, create)
		unix.Close(dir)
		if err != nil {
			return 0, "", err
		}
		dir = next
	}
	return dir, parts[len(parts)-1], nil
}

// enter opens a directory in dir.
func enter(dir int, name string, create bool) (int, error) {
	if create {
		if err := unix.Mkdirat(dir, name, 0o700); err != nil && err != unix.EEXIST {
			return 0, err
		}
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil || !create {
		return fd, err
	}
	if err := unix.Fchmod(fd, 0o775); err != nil { // mkdir's mode is limited by the umask
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// removeSecrets removes the files of the exec's secrets and their directories. Files that commands of root put there
// stay.
func (e *exec) removeSecrets() {
	if len(e.secretFiles) == 0 {
		return
	}
	e.s.files.acquire()
	defer e.s.files.release()
	for _, file := range e.secretFiles {
		e.s.secrets.remove(file)
	}
}

// remove removes a file, and the directories above it that are empty then.
func (s *secrets) remove(file string) {
	for flags := 0; file != "."; file, flags = path.Dir(file), unix.AT_REMOVEDIR {
		dir, name, err := s.parent(file, false)
		if err != nil {
			return // a command of root removed or replaced a directory
		}
		err = unix.Unlinkat(dir, name, flags)
		unix.Close(dir)
		if err != nil && err != unix.ENOENT {
			return // the directory has other files
		}
	}
}

// notWritten translates the error of a file of a secret.
func notWritten(file string, err error) error {
	switch err {
	case unix.ENOSPC, unix.ENOMEM:
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonStartFailed,
			"write the secret %.200q: the file system in memory at %s is full: it has %d MiB", file, protocol.SecretsDir,
			control.SecretsSize>>20)
	case unix.EEXIST:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed,
			"write the secret %.200q: %s already has a file with this name", file, protocol.SecretsDir)
	case unix.EACCES, unix.EPERM, unix.ELOOP, unix.ENOTDIR, unix.EISDIR, unix.ENOENT:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed,
			"write the secret %.200q: a command of root has changed %s: %v", file, protocol.SecretsDir, err)
	}
	return protocol.Errorf(protocol.Internal, protocol.ReasonStartFailed, "write the secret %.200q: %v", file, err)
}
