package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The supervisor opens no file for writing. The worker opens them in its own directory, which no container sees, and
// passes them with the command that needs them. They are closed on execve, and no process of the sandbox can look into
// PID 1.

// fileReader reads a connection, and holds the files that arrive with its bytes until they are taken.
type fileReader struct {
	conn    *net.UnixConn
	oob     []byte
	waiting [][]int // one entry for each message with files, in order
}

func newFileReader(conn *net.UnixConn) *fileReader {
	return &fileReader{conn: conn, oob: make([]byte, unix.CmsgSpace(4*control.MaxFiles))}
}

// Read reads bytes. Files arrive no later than the first byte of their frame, and the kernel returns those of one
// message at a time.
func (r *fileReader) Read(p []byte) (int, error) {
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(p, r.oob)
	if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
		r.waiting = append(r.waiting, filesOf(r.oob[:oobn]))
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF
	}
	return max(n, 0), err
}

// filesOf returns the descriptors in a control message. If this process may not open that many files, some are missing.
func filesOf(oob []byte) []int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []int
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, fds...)
		}
	}
	return files
}

// errNoRoom says why files that were sent did not arrive.
var errNoRoom = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonStartFailed,
	"the sandbox's supervisor is at its limit of open files")

// take returns the n files that came with a frame; n is 0 if none did.
func (r *fileReader) take(n int) ([]int, error) {
	if n == 0 {
		return nil, nil
	}
	if len(r.waiting) == 0 {
		return nil, fmt.Errorf("a frame announced %d files, but none came", n)
	}
	files := r.waiting[0]
	r.waiting = r.waiting[1:]
	if len(files) != n {
		closeFiles(files)
		return nil, errNoRoom
	}
	return files, nil
}

// close closes the files that were not taken. The connection must not be read any more.
func (r *fileReader) close() {
	for _, files := range r.waiting {
		closeFiles(files)
	}
	r.waiting = nil
}

func closeFiles(files []int) {
	for _, fd := range files {
		closeFD(fd)
	}
}

// execFiles are the files of an exec; 0: none, so that its content is dropped.
type execFiles struct{ stdout, stderr, record int }

// takeFor returns the files that came with a command, if it is a Start. A worker that could not make them, or is too
// old, sends none.
func (r *fileReader) takeFor(start *control.Start) (execFiles, error) {
	if start == nil {
		return execFiles{}, nil
	}
	files, err := r.take(start.Files)
	if err != nil || len(files) == 0 {
		return execFiles{}, err
	}
	if len(files) != control.ExecFiles {
		closeFiles(files)
		return execFiles{}, fmt.Errorf("a Start came with %d files", len(files))
	}
	return execFiles{stdout: files[0], stderr: files[1], record: files[2]}, nil
}

func (f execFiles) close() { closeFiles([]int{f.stdout, f.stderr, f.record}) }

// writeAll writes p at an offset of a file.
func writeAll(fd int, p []byte, at int64) (written int, err error) {
	for written < len(p) {
		n, err := unix.Pwrite(fd, p[written:], at+int64(written))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}
