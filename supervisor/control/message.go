package control

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Version is the version of this schema, exchanged in [Hello] and [Welcome].
const Version = 1

// Names of files inside the container, and below the sandbox's directories on the host.
const (
	SocketName  = "worker.sock" // in the control directory
	ExecsDir    = "execs"       // in the run directory, on the host: the files of execs
	PrimaryDir  = "primary"     // in the run directory; stdout and stderr of the primary command
	StdoutName  = "stdout"
	StderrName  = "stderr"
	RecordName  = "exit" // in an exec's directory
	ContainerAt = "/.boxfleet"

	// OwnCapability is a capability that the supervisor of privileged commands has and its commands lack, so that they
	// cannot trace it. It allows waking up a suspended machine with a timer, which nothing here does.
	OwnCapability = "WAKE_ALARM"
)

// PrimaryWindow is how many bytes at the end of each output file of the primary command can be read. Earlier bytes are
// freed on disk and read as zeros; offsets do not change.
const PrimaryWindow = 1 << 20

// The worker opens the files that a supervisor writes. It passes the descriptors in the socket message that carries the
// frame; the frame says how many there are.
const (
	ExecFiles    = 3 // with a Start: stdout, stderr, and the exit record
	PrimaryFiles = 2 // with a Welcome: stdout and stderr of the primary command
	MaxFiles     = 8 // with any frame
)

// MaxExecs is how many execs a supervisor remembers, running and ended, until they are forgotten. It refuses one more
// with resource_exhausted.
const MaxExecs = 16384

// MaxInline is the most output, both streams together, that a [Result] carries, even if [Start.InlineLimit] is larger.
const MaxInline = 256 << 10

// Command is one frame to the supervisor. Exactly one of the pointers is set. Each command but Welcome is answered by a
// [Reply] with the same Seq.
type Command struct {
	Seq uint64 `json:"seq,omitempty"`

	// Until is when the worker's trust in its host lock ends, by [Clock]. A supervisor that was stopped and reads a
	// Start or a StopAll later than that refuses it with unavailable and "lease_lost"; if it reads its first Welcome
	// later, it dials again. 0: no limit, from an older worker.
	Until time.Duration `json:"until,omitempty"`

	Welcome *Welcome `json:"welcome,omitempty"`
	Start   *Start   `json:"start,omitempty"`
	Cancel  *Cancel  `json:"cancel,omitempty"`
	Forget  *Forget  `json:"forget,omitempty"`
	StopAll *StopAll `json:"stop_all,omitempty"`
}

// Notice is one frame to the worker. Exactly one of the pointers is set.
type Notice struct {
	Hello   *Hello   `json:"hello,omitempty"`
	Reply   *Reply   `json:"reply,omitempty"`
	Output  *Output  `json:"output,omitempty"`
	Result  *Result  `json:"result,omitempty"`
	Primary *Primary `json:"primary,omitempty"`
}

// Hello is the supervisor's first message on a connection. Its execs may need several frames: all but the last have
// More set, and repeat the other fields.
type Hello struct {
	Version int          `json:"v"`
	Boot    string       `json:"boot"` // random, new at each start of the supervisor
	Pid     int          `json:"pid"`  // in the supervisor's own namespace; 1 in a container
	Started time.Time    `json:"started"`
	Primary *Primary     `json:"primary,omitempty"`
	Execs   []ExecStatus `json:"execs,omitempty"` // of this boot: running, or ended but not forgotten
	More    bool         `json:"more,omitempty"`

	// TakesFiles says that this supervisor writes to the files passed with Welcome and Start. An older one makes its
	// own, in a run directory that is mounted into its container.
	TakesFiles bool `json:"takes_files,omitempty"`
}

// Welcome answers Hello. A boot starts no exec before its first Welcome; only that one starts the primary command.
type Welcome struct {
	Version     int               `json:"v"`
	Key         []byte            `json:"key"`                   // 32 bytes; authenticates exit records
	Command     []string          `json:"command,omitempty"`     // the primary command; empty: there is none
	Env         map[string]string `json:"env,omitempty"`         // of the primary command, added to the supervisor's own environment
	Grace       time.Duration     `json:"grace,omitempty"`       // from TERM to KILL for the primary command, when the supervisor gets TERM
	StopSignal  int               `json:"stop_signal,omitempty"` // asks the primary command to end; default TERM, to its whole tree
	DefaultUser string            `json:"default_user,omitempty"`
	DefaultCwd  string            `json:"default_cwd,omitempty"`
	Files       int               `json:"files,omitempty"` // how many files come with it: [PrimaryFiles], or 0 if the primary command already runs
}

// Start starts an exec, once: the same id again is answered with its current status.
type Start struct {
	ID   string `json:"id"`
	Boot string `json:"boot,omitempty"` // of the supervisor that may start it; another one refuses. Empty: any

	// Number is positive and different for each exec of the sandbox, and mostly grows. A number that this boot has
	// already seen, or that is at least 65,536 below the highest, is refused with failed_precondition and
	// "interrupted", unless the exec is still known. 0: not numbered.
	Number uint64 `json:"number,omitempty"`

	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`  // added to the supervisor's own, which comes from the image and the spec
	Cwd         string            `json:"cwd,omitempty"`  // default: Welcome.DefaultCwd, otherwise /
	User        string            `json:"user,omitempty"` // "name|uid[:group|gid]"; default: Welcome.DefaultUser, otherwise root
	Stdin       []byte            `json:"stdin,omitempty"`
	Timeout     time.Duration     `json:"timeout,omitempty"`      // from the start, by the monotonic clock; 0: none
	Grace       time.Duration     `json:"grace,omitempty"`        // from TERM to KILL after the timeout
	OutputLimit int64             `json:"output_limit,omitempty"` // bytes stored of each stream
	InlineLimit int64             `json:"inline_limit,omitempty"` // up to this size, both streams together, the Result carries the output

	// Files is how many files come with it: [ExecFiles]. With 0, the output is kept in memory, up to half the
	// InlineLimit of each stream, and there is no exit record on disk.
	Files int `json:"files,omitempty"`
}

// Cancel ends an exec: TERM to its whole tree, KILL after Grace. It does nothing if the exec has ended.
type Cancel struct {
	ID    string        `json:"id"`
	Grace time.Duration `json:"grace,omitempty"`
}

// Forget drops ended execs; the worker removes their files. Running and unknown execs are skipped.
type Forget struct {
	IDs []string `json:"ids"`
}

// StopAll ends every exec and the primary command; the Reply comes when all their processes are gone. No exec starts
// afterwards.
type StopAll struct {
	Grace time.Duration `json:"grace,omitempty"`
}

// Reply answers a command.
type Reply struct {
	Seq    uint64          `json:"seq"`
	Error  *protocol.Error `json:"error,omitempty"`
	Status *ExecStatus     `json:"status,omitempty"` // for Start
}

// ExecStatus is the current state of one exec.
type ExecStatus struct {
	ID          string    `json:"id"`
	Started     time.Time `json:"started,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes,omitempty"` // in its file
	StderrBytes int64     `json:"stderr_bytes,omitempty"`
	Result      *Result   `json:"result,omitempty"` // set once it has ended; never with inline output

	// Age is how long ago it was started, by the supervisor's [Clock]; 0: it was not started, or the supervisor is an
	// older one.
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
	ExitCode    *int            `json:"exit_code,omitempty"` // nil: unknown. 128+n: killed by signal n
	TimedOut    bool            `json:"timed_out,omitempty"`
	Cancelled   bool            `json:"cancelled,omitempty"`
	Failed      bool            `json:"failed,omitempty"` // it could not be started; Error says why
	Error       *protocol.Error `json:"error,omitempty"`
	Started     time.Time       `json:"started,omitzero"`
	Ended       time.Time       `json:"ended,omitzero"`
	StdoutBytes int64           `json:"stdout_bytes,omitempty"` // in its file
	StderrBytes int64           `json:"stderr_bytes,omitempty"`
	Truncated   bool            `json:"truncated,omitempty"` // it wrote more than was stored
	DiskFull    bool            `json:"disk_full,omitempty"` // because the disk was full
	OOMKills    int             `json:"oom_kills,omitempty"` // processes of the sandbox that the kernel killed for lack of memory while the exec ran
	Inline      bool            `json:"inline,omitempty"`    // Stdout and Stderr are the complete output
	Stdout      []byte          `json:"stdout,omitempty"`
	Stderr      []byte          `json:"stderr,omitempty"`
}

// WithoutOutput returns the result as it is stored: the output is in the files.
func (r Result) WithoutOutput() Result {
	r.Inline, r.Stdout, r.Stderr = false, nil, nil
	return r
}

// Primary is the current state of the primary command.
type Primary struct {
	Running  bool            `json:"running"`
	Restarts int             `json:"restarts,omitempty"`
	LastExit *int            `json:"last_exit,omitempty"` // of the previous run; 127 and 126 as for an exec
	Error    *protocol.Error `json:"error,omitempty"`     // why it could not be started
	OOMKills int             `json:"oom_kills,omitempty"` // processes that the kernel killed for lack of memory during the previous run
	Since    time.Time       `json:"since,omitzero"`      // since when Running has its value
	Began    time.Time       `json:"began,omitzero"`      // when this run, or the previous one if none runs, was started; zero if it could not be started
	Stdout   int64           `json:"stdout,omitempty"`    // bytes written to its file by all runs; see [PrimaryWindow]
	Stderr   int64           `json:"stderr,omitempty"`
}
