package control

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Version is the version of this protocol, exchanged in [Hello] and [Welcome].
const Version = 1

// Names of files inside the container, and below the sandbox's directories on the host.
const (
	SocketName  = "worker.sock" // the worker's socket in the control directory
	ExecsDir    = "execs"       // directory for the files of execs, in the run directory on the host
	PrimaryDir  = "primary"     // directory for stdout and stderr of the primary command, in the run directory on the host
	StdoutName  = "stdout"
	StderrName  = "stderr"
	RecordName  = "exit" // the exit record of an exec
	ContainerAt = "/.boxfleet"

	// OwnCapability is a capability that a privileged supervisor has, and that the sandbox's commands do not have.
	// Without this capability, the commands cannot trace the supervisor. It is the permission to wake a suspended
	// machine by a timer, which the supervisor never uses.
	OwnCapability = "WAKE_ALARM"
)

// PrimaryWindow is the number of bytes that can be read at the end of each output file of the primary command. Earlier
// bytes are freed on disk, and read as zeros. Offsets in the file do not change.
const PrimaryWindow = 1 << 20

// The worker opens the files that a supervisor writes. It sends their descriptors together with a frame, in the same
// socket message. The frame says how many descriptors there are.
const (
	ExecFiles    = 3 // files with a Start: stdout, stderr, and the exit record
	PrimaryFiles = 2 // files with a Welcome: stdout and stderr of the primary command
	MaxFiles     = 8 // maximum number of files with one frame
)

// MaxExecs is the maximum number of execs that a supervisor has. Running execs count, and ended execs until they are
// forgotten. The supervisor refuses a further exec with resource_exhausted.
const MaxExecs = 16384

// MaxInline is the maximum size of the output in a [Result], both streams together. It applies even if
// [Start.InlineLimit] is larger.
const MaxInline = 256 << 10

// Command is one frame to the supervisor. Exactly one of the pointers is set. Each command except a Welcome without
// secrets is answered by a [Reply] with the same Seq.
type Command struct {
	Seq uint64 `json:"seq,omitempty"`

	// Until is the time, by [Clock], until which the worker can trust that it holds the host's lock. A supervisor that
	// was paused may read the command after Until. It then refuses a Start, a Help, a Signal or a StopAll with unavailable
	// and reason lease_lost. If the command is the first Welcome, the supervisor closes the connection and dials again. 0
	// means no limit; older workers send 0.
	Until time.Duration `json:"until,omitempty"`

	Welcome *Welcome `json:"welcome,omitempty"`
	Start   *Start   `json:"start,omitempty"`
	Cancel  *Cancel  `json:"cancel,omitempty"`
	Forget  *Forget  `json:"forget,omitempty"`
	StopAll *StopAll `json:"stop_all,omitempty"`
	Input   *Input   `json:"input,omitempty"`
	Help    *Help    `json:"help,omitempty"`
	Signal  *Signal  `json:"signal,omitempty"`

	Processes *Processes `json:"processes,omitempty"`
}

// Notice is one frame to the worker. Exactly one of the pointers is set.
type Notice struct {
	Hello   *Hello   `json:"hello,omitempty"`
	Reply   *Reply   `json:"reply,omitempty"`
	Output  *Output  `json:"output,omitempty"`
	Result  *Result  `json:"result,omitempty"`
	Primary *Primary `json:"primary,omitempty"`
}

// Hello is the supervisor's first message on a connection. If the execs need several frames, each frame repeats the
// other fields, and all frames except the last have More set.
type Hello struct {
	Version int          `json:"v"`
	Boot    string       `json:"boot"` // random, new at each start of the supervisor
	Pid     int          `json:"pid"`  // the supervisor's pid in its own namespace; 1 in a container
	Started time.Time    `json:"started"`
	Primary *Primary     `json:"primary,omitempty"`
	Execs   []ExecStatus `json:"execs,omitempty"` // execs of this boot that run, or have ended and are not forgotten
	More    bool         `json:"more,omitempty"`

	// TakesFiles says that this supervisor writes to the files that are sent with Welcome and Start. An older supervisor
	// creates its own files, in a run directory that is mounted into its container.
	TakesFiles bool `json:"takes_files,omitempty"`

	// TakesSecrets says that this supervisor knows the fields Welcome.Secrets, Start.Secrets and Start.OnlyKnown. An
	// older supervisor ignores these fields, so it must not get a command that needs them.
	TakesSecrets bool `json:"takes_secrets,omitempty"`
	TakesInput   bool `json:"takes_input,omitempty"` // this supervisor knows Start.OpenStdin and Command.Input
	TakesHelp    bool `json:"takes_help,omitempty"`  // this supervisor knows Command.Help; an older one does not
	Welcomed     bool `json:"welcomed,omitempty"`    // this boot has accepted a Welcome, so it has the container's secrets
}

// Welcome answers Hello. A supervisor starts no exec before the first Welcome of its boot. Only the first Welcome
// starts the primary command.
type Welcome struct {
	Version     int               `json:"v"`
	Key         []byte            `json:"key"`                   // 32 bytes; authenticates exit records
	Command     []string          `json:"command,omitempty"`     // the primary command; empty: no such command
	Env         map[string]string `json:"env,omitempty"`         // variables added to the primary command's environment
	Grace       time.Duration     `json:"grace,omitempty"`       // time between TERM and KILL for the primary command
	StopSignal  int               `json:"stop_signal,omitempty"` // asks the primary command to end; 0: TERM to its tree
	DefaultUser string            `json:"default_user,omitempty"`
	DefaultCwd  string            `json:"default_cwd,omitempty"`
	Files       int               `json:"files,omitempty"` // [PrimaryFiles], or 0 if the primary command already runs

	// Secrets are the secrets of the container's spec. Their variables and masks apply to every command in the container,
	// and their files belong to DefaultUser. The supervisor takes them from the first Welcome of its boot, and answers a
	// Welcome that has secrets with a [Reply]. If the Reply has an error, the supervisor did not accept the Welcome.
	Secrets []Secret `json:"secrets,omitempty"`
}

// Start starts an exec. A second Start with the same id starts nothing, and is answered with the exec's current status.
type Start struct {
	ID   string `json:"id"`
	Boot string `json:"boot,omitempty"` // the only boot that may start the exec; empty: any boot

	// Number is positive and different for each exec of the sandbox. Later execs normally have higher numbers. The
	// supervisor refuses a Start with failed_precondition and reason interrupted if this boot has already seen the
	// number, or if the number is at least 65,536 below the highest number. It does not refuse the Start of an exec that
	// it still knows. 0 means that the exec has no number.
	Number uint64 `json:"number,omitempty"`

	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`  // added to the environment from the image and the spec
	Cwd         string            `json:"cwd,omitempty"`  // default: Welcome.DefaultCwd, or /
	User        string            `json:"user,omitempty"` // "name|uid[:group|gid]"; default: Welcome.DefaultUser, or root
	Stdin       []byte            `json:"stdin,omitempty"`
	OpenStdin   bool              `json:"open_stdin,omitempty"`   // stdin comes with [Input]; Stdin is empty
	Timeout     time.Duration     `json:"timeout,omitempty"`      // counted from the start of the exec; 0: no timeout
	Grace       time.Duration     `json:"grace,omitempty"`        // time between TERM and KILL after the timeout
	OutputLimit int64             `json:"output_limit,omitempty"` // maximum number of stored bytes of each stream
	InlineLimit int64             `json:"inline_limit,omitempty"` // maximum bytes of both streams in the Result

	// Files is the number of files that come with the command: [ExecFiles] or 0. If Files is 0, the supervisor keeps up
	// to half of InlineLimit of each stream in memory, and writes no exit record to disk.
	Files int `json:"files,omitempty"`

	// Secrets are the secrets of the exec. Their files are in the directory [protocol.SecretsDir]/ID while the exec runs,
	// and belong to the exec's user.
	Secrets []Secret `json:"secrets,omitempty"`

	// OnlyKnown makes the supervisor start nothing: it answers with the exec's status, or with not_found if it does not
	// know the exec. The worker then asks for the exec's secrets, and sends the Start with them.
	OnlyKnown bool `json:"only_known,omitempty"`
}

// Cancel ends an exec. The whole process tree gets TERM, and KILL after Grace. Cancel does nothing if the exec has
// ended.
type Cancel struct {
	ID    string        `json:"id"`
	Grace time.Duration `json:"grace,omitempty"`
}

// Signal sends a signal to the main process of a running exec, or to all of its processes. An older supervisor refuses
// it with failed_precondition and reason unsupported_version.
type Signal struct {
	ID     string `json:"id"`
	Number uint64 `json:"number"` // positive, and higher for each signal to the exec; a repeated number sends nothing
	Signal int    `json:"signal"`
	Tree   bool   `json:"tree,omitempty"`
}

// SignalResult says what happened to a signal. A repeated [Signal] gets the result of the first one.
type SignalResult struct {
	Outcome   protocol.SignalOutcome `json:"outcome"`
	Processes int                    `json:"processes,omitempty"` // how many processes got the signal
	Error     *protocol.Error        `json:"error,omitempty"`     // why no process, or not every process, got it
}

// RememberedSignals is how many results of signals a supervisor remembers for each exec. It answers a repeated signal
// with an older number with the outcome unknown.
const RememberedSignals = 4 * protocol.KeptSignals

// Processes asks for the processes in the container. An older supervisor refuses it with failed_precondition and reason
// unsupported_version.
type Processes struct{}

// ProcessTable lists the processes in a container, without the supervisor, in the order of their ids: at most
// [protocol.MaxProcesses].
type ProcessTable struct {
	Processes []protocol.Process `json:"processes,omitempty"`
	More      int                `json:"more,omitempty"` // how many processes are not listed
}

// Forget makes the supervisor forget ended execs. The worker removes their files. Running and unknown execs are
// skipped.
type Forget struct {
	IDs []string `json:"ids"`
}

// StopAll ends every exec and the primary command. The Reply is sent when all their processes are gone. No exec starts
// afterwards.
type StopAll struct {
	Grace time.Duration `json:"grace,omitempty"`
}

// Reply answers a command.
type Reply struct {
	Seq    uint64          `json:"seq"`
	Error  *protocol.Error `json:"error,omitempty"`
	Status *ExecStatus     `json:"status,omitempty"` // set after a Start
	Input  *InputStatus    `json:"input,omitempty"`  // set after an Input
	Signal *SignalResult   `json:"signal,omitempty"` // set after a Signal

	Processes *ProcessTable `json:"processes,omitempty"` // set after a Processes
}

// ExecStatus is the current state of one exec.
type ExecStatus struct {
	ID          string    `json:"id"`
	Started     time.Time `json:"started,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes,omitempty"` // number of stored bytes
	StderrBytes int64     `json:"stderr_bytes,omitempty"`
	Result      *Result   `json:"result,omitempty"` // set when the exec has ended; never has inline output

	// Age is the time since the exec was started, by the supervisor's [Clock]. It is 0 if the exec was not started, or if
	// the supervisor is an older version.
	Age time.Duration `json:"age,omitempty"`
}

// Output says how much of an exec's output is in its files. The sizes never decrease.
type Output struct {
	ID     string `json:"id"` // "": the primary command
	Stdout int64  `json:"stdout,omitempty"`
	Stderr int64  `json:"stderr,omitempty"`
}

// Result is the end of an exec. At most one of TimedOut, Cancelled and Failed is set.
type Result struct {
	ID          string          `json:"id"`
	ExitCode    *int            `json:"exit_code,omitempty"` // nil: unknown; 128+n: killed by signal n
	TimedOut    bool            `json:"timed_out,omitempty"`
	Cancelled   bool            `json:"cancelled,omitempty"`
	Failed      bool            `json:"failed,omitempty"` // the command could not be started; Error says why
	Error       *protocol.Error `json:"error,omitempty"`
	Started     time.Time       `json:"started,omitzero"`
	Ended       time.Time       `json:"ended,omitzero"`
	StdoutBytes int64           `json:"stdout_bytes,omitempty"` // number of stored bytes
	StderrBytes int64           `json:"stderr_bytes,omitempty"`
	Truncated   bool            `json:"truncated,omitempty"` // the command wrote more than was stored
	DiskFull    bool            `json:"disk_full,omitempty"` // output was not stored because the disk was full
	OOMKills    int             `json:"oom_kills,omitempty"` // out-of-memory kills in the sandbox while the exec ran
	Inline      bool            `json:"inline,omitempty"`    // Stdout and Stderr are the complete output
	Stdout      []byte          `json:"stdout,omitempty"`
	Stderr      []byte          `json:"stderr,omitempty"`
}

// WithoutOutput returns the result without the inline output.
func (r Result) WithoutOutput() Result {
	r.Inline, r.Stdout, r.Stderr = false, nil, nil
	return r
}

// Primary is the current state of the primary command.
type Primary struct {
	Running  bool            `json:"running"`
	Restarts int             `json:"restarts,omitempty"`
	LastExit *int            `json:"last_exit,omitempty"` // exit code of the previous run; 126 or 127 if it did not start
	Error    *protocol.Error `json:"error,omitempty"`     // why the command could not be started
	OOMKills int             `json:"oom_kills,omitempty"` // out-of-memory kills in the sandbox during the previous run
	Since    time.Time       `json:"since,omitzero"`      // time at which Running last changed
	Began    time.Time       `json:"began,omitzero"`      // start of the latest run; zero if it could not be started
	Stdout   int64           `json:"stdout,omitempty"`    // bytes that all runs wrote to the file; see [PrimaryWindow]
	Stderr   int64           `json:"stderr,omitempty"`
}
