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

// The supervisor opens no files for writing. The worker opens the files in its own directory, which no container sees,
// and sends them with the command that needs them. The processes of the sandbox do not get the files: the kernel closes
// the files on execve, and these processes cannot read the memory and the descriptors of PID 1.

// fileReader reads a connection. It keeps the files that arrive with the bytes until take is called.
type fileReader struct {
	conn    *net.UnixConn
	oob     []byte
	waiting [][]int // one entry for each message with files, in order
}

func newFileReader(conn *net.UnixConn) *fileReader {
	return &fileReader{conn: conn, oob: make([]byte, unix.CmsgSpace(4*control.MaxFiles))}
}

// Read implements [io.Reader]. Files arrive no later than the first byte of their frame. One system call returns the
// files of at most one message.
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

// filesOf returns the descriptors in a control message. If this process has reached its limit of open files, some
// descriptors are missing.
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

// errNoRoom is the error for files that were sent but did not arrive.
var errNoRoom = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonStartFailed,
	"the sandbox's supervisor has reached its limit of open files")

// take returns the files of the current frame. The frame announces n files.
func (r *fileReader) take(n int) ([]int, error) {
	if n == 0 {
		return nil, nil
	}
	if len(r.waiting) == 0 {
		return nil, fmt.Errorf("a frame from the worker announced %d files, but none arrived", n)
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

// execFiles are the descriptors of an exec's files. 0 means that the file is missing; the supervisor then drops the
// bytes for that file.
type execFiles struct{ stdout, stderr, record int }

// takeFor returns the files that came with a Start. start is nil for other commands. A worker sends no files if it
// could not create them, or if it is an older version.
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
		return execFiles{}, fmt.Errorf("a Start from the worker has %d files, want %d", len(files), control.ExecFiles)
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
