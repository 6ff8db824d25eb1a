package supervise

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// OpenOutput opens the file with an exec's stdout or stderr for reading. stream is [control.StdoutName] or
// [control.StderrName]. The file's content and size are untrusted: read no further than the size that the supervisor
// announced. OpenOutput never blocks. Errors: not_found if the file does not exist, for example because the exec has no
// output; permission_denied if it is not a regular file.
func OpenOutput(run *os.Root, execID, stream string) (*os.File, error) {
	if stream != control.StdoutName && stream != control.StderrName {
		return nil, protocol.Invalid("stream", "must be stdout or stderr, got %.20q", stream)
	}
	return openExecFile(run, execID, stream)
}

// OpenPrimary opens the file with the stdout or stderr of the primary command. It is like [OpenOutput], but only the
// last [control.PrimaryWindow] bytes of the file can be read.
func OpenPrimary(run *os.Root, stream string) (*os.File, error) {
	if stream != control.StdoutName && stream != control.StderrName {
		return nil, protocol.Invalid("stream", "must be stdout or stderr, got %.20q", stream)
	}
	return openFile(run, stream, control.PrimaryDir)
}

// ReadRecord reads the exit record of an exec, and verifies that the supervisor sealed the record with the key in the
// sandbox's Welcome. Errors: not_found if there is no record, because the supervisor did not see the end of the exec;
// permission_denied if the record is not a regular file; [control.ErrForged] if the verification fails.
func ReadRecord(run *os.Root, key []byte, execID string) (*control.Record, error) {
	file, err := openExecFile(run, execID, control.RecordName)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, control.MaxRecord+1))
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read the exit record of %s: %v", execID, err)
	}
	if len(data) == 0 { // the worker created the file before the exec started, and no record was written
		return nil, protocol.Errorf(protocol.NotFound, "", "exec %s has no exit record", execID)
	}
	return control.Open(key, execID, data)
}

// RemoveExec removes the files of an exec. It does not follow links. Missing files are no error.
func RemoveExec(run *os.Root, execID string) error {
	if err := protocol.ValidateID("exec_id", execID); err != nil {
		return err
	}
	begins := []string{execID}
	if set, err := setOf(run, execID); err == nil && set != "" {
		begins = append(begins, set)
	}
	for _, begin := range begins {
		for _, name := range fileNames {
			if err := run.RemoveAll(control.ExecsDir + "/" + fileOf(begin, name)); err != nil {
				return protocol.Errorf(protocol.Internal, "", "remove the %s of exec %s: %v", name, execID, err)
			}
		}
	}
	if err := run.RemoveAll(control.ExecsDir + "/" + execID); err != nil {
		return protocol.Errorf(protocol.Internal, "", "remove the directory of exec %s: %v", execID, err)
	}
	return nil
}

// fileOf returns the name of a file in the directory of all execs. The name starts with the name of the set or, if the
// exec has no set, with the exec's id.
func fileOf(begin, name string) string { return begin + "." + name }

// FilesOf returns the prefix of the names of an exec's files in the directory of all execs.
func FilesOf(run *os.Root, execID string) (string, error) {
	if err := protocol.ValidateID("exec_id", execID); err != nil {
		return "", err
	}
	if set, err := setOf(run, execID); err != nil || set != "" {
		return set, err
	}
	return execID, nil
}

// openExecFile opens a file of an exec. If the file is not in the directory of all execs, an older supervisor may have
// created it in a directory for this exec.
func openExecFile(run *os.Root, execID, name string) (*os.File, error) {
	begin, err := FilesOf(run, execID)
	if err != nil {
		return nil, err
	}
	file, err := openFile(run, fileOf(begin, name), control.ExecsDir)
	if protocol.CodeOf(err) == protocol.NotFound && begin == execID {
		return openFile(run, name, control.ExecsDir, execID)
	}
	return file, err
}

// openFile opens a regular file in nested directories of the run directory. It opens one directory after another, so
// that it follows no link.
func openFile(run *os.Root, name string, dirs ...string) (*os.File, error) {
	root, err := run.Open(".")
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "open the run directory: %v", err)
	}
	defer root.Close()
	at := int(root.Fd())
	for _, dir := range dirs {
		if at, err = openBelow(at, dir, unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return nil, err
		}
		defer unix.Close(at)
	}
	fd, err := openBelow(at, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, hostile(name, "is not a regular file")
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openBelow(dir int, name string, flags int) (int, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	switch err {
	case nil:
		return fd, nil
	case unix.ENOENT:
		return 0, protocol.Errorf(protocol.NotFound, "", "%s does not exist in the run directory", name)
	case unix.ELOOP, unix.ENOTDIR, unix.ENXIO:
		return 0, hostile(name, "is not a file that the supervisor created")
	default:
		return 0, protocol.Errorf(protocol.Internal, "", "open %s in the run directory: %v", name, err)
	}
}

func hostile(name, what string) error {
	return protocol.Errorf(protocol.PermissionDenied, "", "%s in the run directory %s", name, what)
}
