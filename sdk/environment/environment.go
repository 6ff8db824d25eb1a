package environment

import (
	"context"
	"io"
	"iter"
	"net"
	"slices"
	"time"
)

// Environment is a place where commands run and files are kept. Implementations are safe for concurrent use.
//
// A path is absolute, or begins at the working directory of the environment; see [CheckPath]. Errors match *[Error] and
// one of the sentinels, such as [ErrInvalid].
type Environment interface {
	// Describe says what the environment is and what it can do. It returns the same description at each call, and contacts
	// nothing.
	Describe() Description

	// ExecuteStreaming runs a command with a POSIX shell. The sequence yields chunks of output as they arrive, then
	// exactly one event with the result; or it ends with one error. Nothing runs before the sequence is read, and each
	// reading runs the command once. The command has at most [MaxCommand] bytes.
	//
	// Errors: ErrInvalid for a bad command or option; ErrUnsupported for an option that the environment cannot apply;
	// ErrNotFound for a working directory that does not exist; *[TimeoutError]; ErrCancelled if ctx ended;
	// ErrUnavailable if the environment cannot be reached.
	ExecuteStreaming(ctx context.Context, command string, o Options) iter.Seq2[Event, error]

	// ExecuteCodeStreaming runs code with the interpreter of a language, see [Interpreters]. The interpreter reads the
	// code from its standard input. The code has at most [MaxCode] bytes. Errors are those of ExecuteStreaming, and
	// ErrNoLanguage if the environment has no such interpreter.
	ExecuteCodeStreaming(ctx context.Context, language, code string, o Options) iter.Seq2[Event, error]

	// ReadFile returns the content of a file of at most [MaxReadFile] bytes. Errors: ErrNotFound, ErrIsDirectory,
	// ErrPermission, ErrTooLarge, ErrNotRegular.
	ReadFile(ctx context.Context, path string) ([]byte, error)

	// WriteFile creates a file, or replaces its content atomically. It creates missing directories above the file, and
	// follows a symbolic link at the end of the path. A new file has mode 0644; a file that exists keeps its mode. Errors:
	// ErrIsDirectory, ErrNotDirectory if a part of the path is a file, ErrNotRegular, ErrPermission.
	WriteFile(ctx context.Context, path string, content []byte) error

	// RemoveFile removes a file or a symbolic link. Errors: ErrNotFound, ErrIsDirectory, ErrPermission, and ErrNotRegular
	// for a device, a FIFO or a socket, as for ReadFile and WriteFile.
	RemoveFile(ctx context.Context, path string) error

	// ListFiles returns the entries of a directory except "." and "..", sorted by the bytes of their names. Errors:
	// ErrNotFound, ErrNotDirectory, ErrPermission.
	ListFiles(ctx context.Context, path string) ([]File, error)
}

// Streamer reads and writes files of any size in bounded memory. Environments with the capability [Streams] are
// Streamers.
type Streamer interface {
	// OpenFile opens a file for reading. The caller must close the reader. Errors are those of ReadFile, except
	// ErrTooLarge; they come from OpenFile or from Read.
	OpenFile(ctx context.Context, path string) (io.ReadCloser, error)
	// WriteFileFrom writes a file from a reader, like WriteFile. If the reader fails, the file stays as it was, and
	// WriteFileFrom returns the reader's error.
	WriteFileFrom(ctx context.Context, path string, content io.Reader) error
}

// Dialer connects to servers in an environment. Environments with the capability [Ports] are Dialers.
type Dialer interface {
	// DialPort connects to a TCP port, 1 to 65535, on the loopback address of the environment. Error: ErrUnavailable if
	// nothing answers.
	DialPort(ctx context.Context, port int) (net.Conn, error)
}

// Options says how a command or code runs. The zero value means the defaults of the environment.
type Options struct {
	// Timeout is how long the command may run before it is ended. 0: no limit.
	Timeout time.Duration
	// Dir is the working directory. Default: that of the environment.
	Dir string
	// Env holds variables that are added to those of the environment; see [ValidateEnvKeys]. Names and values together
	// have at most [MaxEnvBytes] bytes.
	Env map[string]string
	// User runs the command: a name or a uid, and optionally a group, as in "agent:staff" or "1000:1000". Only an
	// environment with the capability [Users] accepts it.
	// Default: the user of the environment.
	User string
}

// Stream names one of the two streams that a command prints to.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Event is a chunk of output, or the result that ends a sequence.
type Event struct {
	Stream Stream  // where Data was printed; empty with a Result
	Data   []byte  // a chunk of at least one byte, which the receiver may keep
	Result *Result // set in the last event only
}

// UnknownExitCode is the exit code of a command whose end is not known.
const UnknownExitCode = -1

// Result says how a command ended.
type Result struct {
	ExitCode int // 128+n if signal n ended the command; UnknownExitCode in a [TimeoutError]

	// What the command printed, up to [MaxOutput] bytes of each. The result of a sequence leaves both empty, because the
	// chunks were yielded before.
	Stdout, Stderr []byte
	Truncated      bool // the command printed more than Stdout or Stderr holds

	// Files holds what the code has shown in addition to its output, such as a figure. Most environments have none.
	Files []OutputFile
}

// OutputFile is something that code has shown, such as a figure.
type OutputFile struct {
	Name      string
	MediaType string // such as image/png
	Content   []byte
}

// File is an entry of a directory.
type File struct {
	Name string
	Type FileType
}

// FileType is the type of an entry of a directory.
type FileType string

// The types of entries.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeLink      FileType = "link" // a symbolic link, wherever it leads
	TypeOther     FileType = "other"
)

// Description says what an environment is and what it can do.
type Description struct {
	Backend string // such as "fleet" or "ssh"
	// Isolation says what separates commands from the machine that they run on: [IsolationNone], [IsolationContainer], or
	// a word that another backend defines. "unknown" means that the backend cannot tell.
	Isolation    string
	Capabilities []Capability
}

// Kinds of isolation.
const (
	IsolationNone      = "none"
	IsolationContainer = "container"
	IsolationUnknown   = "unknown"
)

// Has reports whether the environment has a capability.
func (d Description) Has(c Capability) bool { return slices.Contains(d.Capabilities, c) }

// Capability is an optional ability.
type Capability string

// The capabilities. An environment may have others.
const (
	POSIX     Capability = "posix"     // commands run in a complete POSIX shell, with the utilities of a POSIX system
	Users     Capability = "users"     // Options.User works
	Streams   Capability = "streams"   // the environment is a Streamer
	Ports     Capability = "ports"     // the environment is a Dialer
	Terminals Capability = "terminals" // commands can have a terminal
	Sessions  Capability = "sessions"  // commands can share a shell that keeps its state
	Snapshots Capability = "snapshots" // the files can be kept and restored
	Tools     Capability = "tools"     // commands in the environment can call tools of the caller
)
