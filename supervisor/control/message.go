package control

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Version is the version of this schema, exchanged in [Hello] and [Welcome].
const Version = 1

// Where things are, inside the container and below the sandbox's directories on the host.
const (
	SocketName  = "worker.sock" // in the control directory
	ExecsDir    = "execs"       // in the run directory, on the host; one directory per exec
	PrimaryDir  = "primary"     // in the run directory; stdout and stderr of the primary command
	StdoutName  = "stdout"
	StderrName  = "stderr"
	RecordName  = "exit" // in an exec's directory
	ContainerAt = "/.boxfleet"

	// OwnCapability is what a container of privileged commands gives its supervisor on top of their
	// capabilities, so that they cannot trace it. It allows waking a machine by a timer, which
	// nothing here does.
	OwnCapability = "WAKE_ALARM"
)

// PrimaryWindow is how many bytes at the end of each output file of the primary command can be read.
// What is before them was given back to the disk, and reads as zeros; the file's size goes on.
const PrimaryWindow = 1 << 20

// The worker opens the files that a supervisor writes, and passes the descriptors with the frame that says
// how many they are, in one message of the socket.
const (
	ExecFiles    = 3 // with a Start: stdout, stderr, and the exit record
	PrimaryFiles = 2 // with a Welcome: stdout and stderr of the primary command
	MaxFiles     = 8 // with one frame
)

// MaxExecs is how many execs a supervisor remembers, running and ended, until they are forgotten.
// One more is refused with resource_exhausted.
const MaxExecs = 16384

// MaxInline is the most output, both streams together, that a [Result] carries, whatever
// [Start.InlineLimit] says.
const MaxInline = 256 << 10

// Command is one frame towards the supervisor. Exactly one of the pointers is set. All but Welcome
// are answered by a [Reply] with the same Seq.
type Command struct {
	Seq uint64 `json:"seq,omitempty"`

	// Until is until when the command may be carried out, by [Clock]: the worker may trust its lock on
	// the host for so long. A supervisor that reads a Start or a StopAll later, having been stopped
	// meanwhile, refuses it with unavailable and "lease_lost"; a first Welcome it answers by dialling
	// again. 0: no bound, from a worker that is older.
	Until time.Duration `json:"until,omitempty"`

	Welcome *Welcome `json:"welcome,omitempty"`
	Start   *Start   `json:"start,omitempty"`
	Cancel  *Cancel  `json:"cancel,omitempty"`
	Forget  *Forget  `json:"forget,omitempty"`
	StopAll *StopAll `json:"stop_all,omitempty"`
}

// Notice is one frame towards the worker. Exactly one of the pointers is set.
type Notice struct {
	Hello   *Hello   `json:"hello,omitempty"`
	Reply   *Reply   `json:"reply,omitempty"`
	Output  *Output  `json:"output,omitempty"`
	Result  *Result  `json:"result,omitempty"`
	Primary *Primary `json:"primary,omitempty"`
}

// Hello is the supervisor's first word on a connection. Execs may need several frames: all but the
// last have More set, and carry nothing else that is new.
type Hello struct {
	Version int          `json:"v"`
	Boot    string       `json:"boot"` // random, one per start of the supervisor
	Pid     int          `json:"pid"`  // as the supervisor sees itself; 1 in a container
	Started time.Time    `json:"started"`
	Primary *Primary     `json:"primary,omitempty"`
	Execs   []ExecStatus `json:"execs,omitempty"` // of this boot: running, or ended and not forgotten
	More    bool         `json:"more,omitempty"`

	// TakesFiles says that it writes to the files that come with Welcome and Start. One that is older makes its
	// own, in a run directory that is mounted into its container.
	TakesFiles bool `json:"takes_files,omitempty"`
}

// Welcome answers Hello. No exec starts before a boot's first one; only that one starts the
// primary command.
type Welcome struct {
	Version     int               `json:"v"`
	Key         []byte            `json:"key"`                   // 32 bytes; authenticates exit records
	Command     []string          `json:"command,omitempty"`     // the primary command, if there is one
	Env         map[string]string `json:"env,omitempty"`         // for the primary command, over the supervisor's own environment
	Grace       time.Duration     `json:"grace,omitempty"`       // TERM to KILL for the primary command, when the supervisor gets TERM
	StopSignal  int               `json:"stop_signal,omitempty"` // that the primary command ends by; default TERM, to its whole tree
	DefaultUser string            `json:"default_user,omitempty"`
	DefaultCwd  string            `json:"default_cwd,omitempty"`
	Files       int               `json:"files,omitempty"` // that come with it: [PrimaryFiles], or 0 where the primary command runs already
}

// Start starts an exec, once: the same id again answers with its present status.
type Start struct {
	ID   string `json:"id"`
	Boot string `json:"boot,omitempty"` // of the supervisor that may start it; another one refuses. Empty: any

	// Number is greater than 0 and differs for each exec of the sandbox, mostly growing. A number that
	// this boot has had, or that is 65,536 or more below the highest, is refused with
	// failed_precondition and "interrupted", unless the exec is known still. 0: not numbered.
	Number uint64 `json:"number,omitempty"`

	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`  // over the supervisor's own, which is the image's and the sandbox's
	Cwd         string            `json:"cwd,omitempty"`  // default: Welcome.DefaultCwd, else /
	User        string            `json:"user,omitempty"` // "name|uid[:group|gid]"; default: Welcome.DefaultUser, else root
	Stdin       []byte            `json:"stdin,omitempty"`
	Timeout     time.Duration     `json:"timeout,omitempty"`      // from the start, by the monotonic clock; 0: none
	Grace       time.Duration     `json:"grace,omitempty"`        // TERM to KILL after the timeout
	OutputLimit int64             `json:"output_limit,omitempty"` // bytes kept of each stream
	InlineLimit int64             `json:"inline_limit,omitempty"` // a Result carries the output up to this size, both streams together

	// Files is how many come with it: [ExecFiles]. With 0 the output is kept in memory, up to half the
	// InlineLimit of each stream, and there is no exit record on disk.
	Files int `json:"files,omitempty"`
}

// Cancel ends an exec: TERM to its whole tree, KILL after Grace. For an ended one it does nothing.
type Cancel struct {
	ID    string        `json:"id"`
	Grace time.Duration `json:"grace,omitempty"`
}

// Forget drops ended execs; the worker removes their files. Running and unknown ones are passed over.
type Forget struct {
	IDs []string `json:"ids"`
}

// StopAll ends every exec and the primary command; the Reply comes when nothing is left of them.
// No exec starts afterwards.
type StopAll struct {
	Grace time.Duration `json:"grace,omitempty"`
}

// Reply answers a command.
type Reply struct {
	Seq    uint64          `json:"seq"`
	Error  *protocol.Error `json:"error,omitempty"`
	Status *ExecStatus     `json:"status,omitempty"` // for Start
}

// ExecStatus is one exec as it is now.
type ExecStatus struct {
	ID          string    `json:"id"`
	Started     time.Time `json:"started,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes,omitempty"` // in its file
	StderrBytes int64     `json:"stderr_bytes,omitempty"`
	Result      *Result   `json:"result,omitempty"` // set when it has ended; never with the output inline

	// Age is how long ago it was started, by the supervisor's own [Clock]; 0: it was not, or the supervisor
	// is an older one.
	Age time.Duration `json:"age,omitempty"`
}

// Output says how much of an exec's output is in its files. Sizes never shrink.
type Output struct {
	ID     string `json:"id"` // "": the primary command
	Stdout int64  `json:"stdout,omitempty"`
	Stderr int64  `json:"stderr,omitempty"`
}

// Result is the end of an exec. At most one of TimedOut, Cancelled and Failed is set.
type Result struct {
	ID          string          `json:"id"`
	ExitCode    *int            `json:"exit_code,omitempty"` // nil: not known. 128+n: died of signal n
	TimedOut    bool            `json:"timed_out,omitempty"`
	Cancelled   bool            `json:"cancelled,omitempty"`
	Failed      bool            `json:"failed,omitempty"` // it could not be started; Error says why
	Error       *protocol.Error `json:"error,omitempty"`
	Started     time.Time       `json:"started,omitzero"`
	Ended       time.Time       `json:"ended,omitzero"`
	StdoutBytes int64           `json:"stdout_bytes,omitempty"` // in its file
	StderrBytes int64           `json:"stderr_bytes,omitempty"`
	Truncated   bool            `json:"truncated,omitempty"` // it wrote more than was kept
	DiskFull    bool            `json:"disk_full,omitempty"` // ... for want of room on the disk
	OOMKills    int             `json:"oom_kills,omitempty"` // processes of the sandbox that the kernel killed for want of memory while it ran
	Inline      bool            `json:"inline,omitempty"`    // Stdout and Stderr are all of the output
	Stdout      []byte          `json:"stdout,omitempty"`
	Stderr      []byte          `json:"stderr,omitempty"`
}

// WithoutOutput is the result as it is kept: the output is in the files.
func (r Result) WithoutOutput() Result {
	r.Inline, r.Stdout, r.Stderr = false, nil, nil
	return r
}

// Primary is the primary command as it is now.
type Primary struct {
	Running  bool            `json:"running"`
	Restarts int             `json:"restarts,omitempty"`
	LastExit *int            `json:"last_exit,omitempty"` // of the run before; 127 and 126 as for an exec
	Error    *protocol.Error `json:"error,omitempty"`     // why it could not be started
	OOMKills int             `json:"oom_kills,omitempty"` // processes that the kernel killed for want of memory during the run before
	Since    time.Time       `json:"since,omitzero"`      // of Running
	Began    time.Time       `json:"began,omitzero"`      // when this run, or the one before where none runs, was started; zero where it could not be
	Stdout   int64           `json:"stdout,omitempty"`    // bytes written to its file, over all runs; see [PrimaryWindow]
	Stderr   int64           `json:"stderr,omitempty"`
}
