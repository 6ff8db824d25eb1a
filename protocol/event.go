package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Kind is the kind of an event.
type Kind string

// The kinds. Each comment ends with the fields of [Event] that the kind sets. [Transitions] lists in which states each
// kind is legal, and who may write it.
const (
	SandboxAccepted        Kind = "sandbox.accepted"         // Details.Spec, Defaulted, Name
	SandboxAssigned        Kind = "sandbox.assigned"         // Details.Worker, HostID, Generation, Spec
	SandboxRefused         Kind = "sandbox.refused"          // its worker has no room; waits for a host again: Error
	SandboxReplaced        Kind = "sandbox.replaced"         // host lost or drained; created again on another: Reason
	SandboxPreparing       Kind = "sandbox.preparing"        // Details.Phase, Pull
	SandboxReady           Kind = "sandbox.ready"            // Details.Image, Isolation, Boot, …
	SandboxRestarted       Kind = "sandbox.restarted"        // runs again after its engine restarted: Details.Boot
	SandboxWaiting         Kind = "sandbox.waiting"          // the container cannot be restarted yet: Error
	SandboxStopRequested   Kind = "sandbox.stop_requested"   // Reason
	SandboxStopped         Kind = "sandbox.stopped"          // Reason
	SandboxResumeRequested Kind = "sandbox.resume_requested" //
	SandboxFailed          Kind = "sandbox.failed"           // Error
	SandboxExtended        Kind = "sandbox.extended"         // Details.ExpiresAt
	SandboxUnchanged       Kind = "sandbox.unchanged"        // a request that changed nothing: Details.Verb, Exec
	SandboxDeleteRequested Kind = "sandbox.delete_requested" // Reason
	SandboxHook            Kind = "sandbox.hook"             // on_delete ended: Details.ExitCode, Output; Error
	SandboxUsed            Kind = "sandbox.used"             // clients use streams into it: Streams
	SandboxDeleted         Kind = "sandbox.deleted"          // Reason
	ExecAccepted           Kind = "exec.accepted"            // Exec.Spec
	ExecStarted            Kind = "exec.started"             // Exec.Boot
	ExecCancelRequested    Kind = "exec.cancel_requested"    //
	ExecSignalRequested    Kind = "exec.signal_requested"    // Exec.Signal: Number, Tree
	ExecSignalled          Kind = "exec.signalled"           // outcome of a signal: Exec.Signal; Error
	ExecFinished           Kind = "exec.finished"            // Exec.ExitCode, output
	ExecFailed             Kind = "exec.failed"              // Error: could not run, or was interrupted; ExitCode if known
	ExecCancelled          Kind = "exec.cancelled"           // Reason; ExitCode if known
	ExecTimedOut           Kind = "exec.timed_out"           // ExitCode if known
	PrimaryStarted         Kind = "primary.started"          // the sandbox's own command started: Primary
	PrimaryEnded           Kind = "primary.ended"            // Primary.ExitCode; Error if it could not start
	ServiceReady           Kind = "service.ready"            // Service.Name
	ServiceFailed          Kind = "service.failed"           // Service.Name, Error
	// The service's command ended or could not start, and the worker starts it again: Service.Name, ExitCode, Ends,
	// Boot; Error if it could not start.
	ServiceEnded Kind = "service.ended"
	// A post_start command ended: Service.Name, Hook, ExitCode, Output; Error if it failed.
	ServiceHook Kind = "service.hook"
)

// Event is one numbered entry of a sandbox's history. At most one of Details, Exec, Service and
// Primary is set. State is the sandbox's state after the event.
type Event struct {
	Sequence uint64          `json:"seq"` // 1, 2, 3 … per sandbox, without gap or repeat
	Kind     Kind            `json:"kind"`
	Time     time.Time       `json:"time"` // time by the store's clock, as the writer estimates it
	State    SandboxState    `json:"state"`
	Request  string          `json:"request,omitempty"` // id of the request that caused the event
	Actor    string          `json:"actor,omitempty"`   // user whose request caused the event
	Reason   string          `json:"reason,omitempty"`
	Error    *Error          `json:"error,omitempty"`
	Details  *SandboxDetails `json:"sandbox_details,omitempty"`
	Exec     *ExecDetails    `json:"exec,omitempty"`
	Service  *ServiceDetails `json:"service,omitempty"`
	Primary  *PrimaryDetails `json:"primary,omitempty"`
	Streams  []StreamUse     `json:"streams,omitempty"` // use of streams, in sandbox.used; at most [MaxStreamUses]

	// The reader fills in the fields below from the message that carried the event.
	Tenant  string `json:"tenant,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
	Writer  string `json:"writer,omitempty"`
	Token   uint64 `json:"token,omitempty"`
	Record  uint64 `json:"record,omitempty"` // stream sequence of the message
	Replay  bool   `json:"replay,omitempty"` // the event is older than the reader's subscription
}

// SandboxDetails holds the details that a sandbox event adds to the state.
type SandboxDetails struct {
	Phase string `json:"phase,omitempty"` // image, network, container, start
	// Spec is the accepted spec. In an assignment it is the spec with the worker's defaults, if these defaults change
	// the accepted spec.
	Spec       *SandboxSpec `json:"spec,omitempty"`
	Worker     string       `json:"worker,omitempty"`
	HostID     string       `json:"host_id,omitempty"`
	Generation uint64       `json:"generation,omitempty"`
	Image      string       `json:"image,omitempty"`     // id of the running image
	Isolation  string       `json:"isolation,omitempty"` // OCI runtime: runc, runsc, …
	Container  string       `json:"container,omitempty"` // the Engine's container id
	Subnet     string       `json:"subnet,omitempty"`
	Boot       string       `json:"boot,omitempty"`                // boot of the supervisor
	ExpiresAt  time.Time    `json:"expires_at,omitempty,omitzero"` // when the ttl expires
	ExitCode   *int         `json:"exit_code,omitempty"`           // exit code of a hook; nil: unknown
	Output     []byte       `json:"output,omitempty"`              // end of a hook's output, at most [MaxLastOutput] bytes
	Digest     string       `json:"digest,omitempty"`              // digest of the image, from its registry
	Ports      []Port       `json:"ports,omitempty"`               // the published ports

	Pull *PullProgress `json:"pull,omitempty"` // progress of the image's pull, in phase image
	// Defaulted lists the fields of the accepted spec that no layer sets, so that they have built-in defaults.
	Defaulted []string `json:"built_in,omitempty"`
	Verb      string   `json:"verb,omitempty"` // verb of a request that changed nothing
	Exec      string   `json:"exec,omitempty"` // id of the exec that the request named
	Name      string   `json:"name,omitempty"` // name of the accepted sandbox
}

// ExecDetails holds the details that an exec event adds to the state.
type ExecDetails struct {
	ID          string    `json:"id"`
	State       ExecState `json:"state"` // state of the exec after the event
	Spec        *ExecSpec `json:"spec,omitempty"`
	Boot        string    `json:"boot,omitempty"`             // supervisor boot in which the exec runs
	ExitCode    *int      `json:"exit_code,omitempty"`        // nil: unknown; 128+n: killed by signal n
	Started     time.Time `json:"started,omitempty,omitzero"` // start by the store's clock, as the worker estimates it
	Ended       time.Time `json:"ended,omitempty,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes,omitempty"` // retained bytes, at most the output limit
	StderrBytes int64     `json:"stderr_bytes,omitempty"`
	Truncated   bool      `json:"truncated,omitempty"` // the command wrote more than was retained
	// OOMKills counts the sandbox's processes that the kernel's OOM killer ended while the exec ran.
	OOMKills int `json:"oom_kills,omitempty"`
	// Inline reports that Stdout and Stderr hold the whole output. The output log then has no output of the exec.
	Inline bool   `json:"inline,omitempty"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`

	OutputError *Error `json:"output_error,omitempty"` // why output after StdoutBytes and StderrBytes is missing

	// StdoutSHA256 and StderrSHA256 are the SHA-256, in hex, of the first StdoutBytes bytes of stdout and the first
	// StderrBytes bytes of stderr. A hash is empty if the stream has no bytes, or if the worker does not know the hash.
	StdoutSHA256 string `json:"stdout_sha256,omitempty"`
	StderrSHA256 string `json:"stderr_sha256,omitempty"`

	Signal *SignalDetails `json:"signal,omitempty"`
}

// PrimaryDetails describes one run of a sandbox's own command.
type PrimaryDetails struct {
	Boot     string `json:"boot"`                // supervisor boot in which the command runs
	Restarts int    `json:"restarts,omitempty"`  // earlier runs in this boot
	ExitCode *int   `json:"exit_code,omitempty"` // nil: unknown, or not ended; 128+n: killed by signal n
	// OOMKills counts the sandbox's processes that the kernel's OOM killer ended during the run.
	OOMKills int `json:"oom_kills,omitempty"`
}

// ServiceDetails holds the details that a service event adds to the state.
type ServiceDetails struct {
	Name     string `json:"name"`
	Hook     int    `json:"hook,omitempty"`      // index in post_start, from 1
	ExitCode *int   `json:"exit_code,omitempty"` // exit code of the hook or the command; nil: unknown
	Output   []byte `json:"output,omitempty"`    // end of the hook's output, at most [MaxLastOutput] bytes

	// In service.ended, Ends is how often the command has ended since its container started, and ExitCode is the exit
	// code of the last run.
	Ends int    `json:"ends,omitempty"`
	Boot string `json:"boot,omitempty"` // the start of the container, in service.ended
}

// StreamUse counts the streams of one user to one target in a sandbox, such as a server, since the previous event. For
// kind file, it counts one user's operations that change files.
type StreamUse struct {
	Kind    string `json:"kind"`              // kind of the streams; see [StreamOpen]
	User    string `json:"user,omitempty"`    // empty: a client without a user
	Service string `json:"service,omitempty"` // service whose container was used; empty: the primary container
	Address string `json:"address,omitempty"` // address of the server in the sandbox, for kind dial
	Opened  int    `json:"opened,omitempty"`  // streams opened
	Closed  int    `json:"closed,omitempty"`  // streams ended
	Open    int    `json:"open,omitempty"`    // streams that are open now

	// These fields are set for kind file. A history has only operations that change files. Opened, Closed and Open then
	// count operations, and Sent counts the bytes that the user wrote.
	Operation string `json:"operation,omitempty"` // as in [FileRequest]: write, mkdir, move, copy, remove, edit or unpack
	Path      string `json:"path,omitempty"`      // path of the last change; at most [MaxUsedPath] bytes
	Failed    int    `json:"failed,omitempty"`    // how many of Closed returned an error; they may have changed a part

	Sent     int64 `json:"sent,omitempty"`     // bytes from the user into the sandbox
	Received int64 `json:"received,omitempty"` // bytes from the sandbox to the user
	// Others is true in an entry that sums up the users and targets that do not fit into the event.
	Others bool `json:"others,omitempty"`
}

// MaxUsedPath is the maximum size of a [StreamUse.Path], in bytes. A longer path is cut.
const MaxUsedPath = 256

// MaxStreamUses is the largest number of entries in [Event.Streams].
const MaxStreamUses = 32

// Batch is the payload of one message of the event log. It is appended as a whole, and its events have
// consecutive sequences.
type Batch struct {
	Version int     `json:"v"`
	Tenant  string  `json:"tenant"`
	Sandbox string  `json:"sandbox"`
	ID      string  `json:"id"` // unique per append; lets a writer recognize its batch after a lost answer
	Writer  string  `json:"writer"`
	Token   uint64  `json:"token,omitempty"`
	Events  []Event `json:"events"`

	Record uint64 `json:"-"` // stream sequence of the message, filled in by the reader
	Proof  *Proof `json:"-"` // what the reader knows about the message; nil: nothing
}

// DecodeBatch decodes a message of the event log and fills in its events as [Batch.Fill] does. record is the stream
// sequence of the message. DecodeBatch returns the errors of [Decode] and [Batch.Check].
func DecodeBatch(data []byte, record uint64) (*Batch, error) {
	b := &Batch{}
	if err := Decode(data, b); err != nil {
		return nil, err
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	b.Fill(record)
	return b, nil
}

// Check rejects a batch of an unknown version, a batch without events, and a batch whose events do not have consecutive
// sequences from 1 or more. Errors: failed_precondition for the version, otherwise invalid_argument.
func (b *Batch) Check() error {
	if err := CheckVersion(b.Version); err != nil {
		return err
	}
	if len(b.Events) == 0 {
		return Errorf(InvalidArgument, ReasonUndecodable, "a batch without events")
	}
	for i, e := range b.Events {
		if want := b.First() + uint64(i); e.Sequence != want || want == 0 {
			return Errorf(InvalidArgument, ReasonUndecodable,
				"event %d of a batch that starts at sequence %d has sequence %d", i, b.First(), e.Sequence)
		}
	}
	return nil
}

// Fill sets the fields that each event takes from the message that carries it. It clears Replay, which only a
// reader may set.
func (b *Batch) Fill(record uint64) {
	b.Record = record
	for i := range b.Events {
		e := &b.Events[i]
		e.Tenant, e.Sandbox, e.Writer, e.Token = b.Tenant, b.Sandbox, b.Writer, b.Token
		e.Record, e.Replay = record, false
	}
}

// Encode encodes the batch as msgpack, without the fields that [Batch.Fill] sets.
func (b *Batch) Encode() []byte {
	bare := *b
	bare.Events = make([]Event, len(b.Events))
	for i, e := range b.Events {
		e.Tenant, e.Sandbox, e.Writer, e.Token, e.Record, e.Replay = "", "", "", 0, 0, false
		bare.Events[i] = e
	}
	return Encode(&bare)
}

// First returns the sequence of the batch's first event. It panics on a batch without events, which
// [DecodeBatch] rejects.
func (b *Batch) First() uint64 { return b.Events[0].Sequence }

// Last returns the sequence of the batch's last event. It panics on a batch without events.
func (b *Batch) Last() uint64 { return b.Events[len(b.Events)-1].Sequence }

// Headers returns message headers that summarize the batch for a person who reads the stream. Their size does not grow
// with the number of events, because a server accepts at most 64 KiB of headers. It panics on a batch without events.
func (b *Batch) Headers() map[string]string {
	sequence := strconv.FormatUint(b.First(), 10)
	if len(b.Events) > 1 {
		sequence += "-" + strconv.FormatUint(b.Last(), 10)
	}
	h := map[string]string{
		HeaderContentType: ContentMsgpack,
		HeaderKind:        kindsOf(b.Events),
		HeaderSequence:    sequence,
		HeaderState:       string(b.Events[len(b.Events)-1].State),
		HeaderWriter:      b.Writer,
	}
	if b.Token != 0 {
		h[HeaderToken] = strconv.FormatUint(b.Token, 10)
	}
	return h
}

// listedKinds is the largest number of events whose kinds the header lists one by one.
const listedKinds = 8

// kindsOf lists the kinds of events in their order, as "a,b". Above listedKinds events it lists each kind once
// with its count, as "a*9,b".
func kindsOf(events []Event) string {
	var kinds []string
	if len(events) <= listedKinds {
		for _, e := range events {
			kinds = append(kinds, string(e.Kind))
		}
		return strings.Join(kinds, ",")
	}
	count := map[Kind]int{}
	for _, e := range events {
		if count[e.Kind]++; count[e.Kind] == 1 {
			kinds = append(kinds, string(e.Kind))
		}
	}
	for i, kind := range kinds {
		if n := count[Kind(kind)]; n > 1 {
			kinds[i] = kind + "*" + strconv.Itoa(n)
		}
	}
	return strings.Join(kinds, ",")
}
