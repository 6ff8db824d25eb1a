package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Kind is what an event says happened.
type Kind string

// The kinds. [Transitions] says which is legal when, and who may write it.
const (
	SandboxAccepted        Kind = "sandbox.accepted"         // Phase.Spec, BuiltIn, Name
	SandboxAssigned        Kind = "sandbox.assigned"         // Phase.Worker, HostID, Generation; Spec if the worker's defaults change it
	SandboxRefused         Kind = "sandbox.refused"          // its worker has no room, so it is placed again: Error
	SandboxReplaced        Kind = "sandbox.replaced"         // its host is lost or drained, so it is recreated elsewhere: Reason
	SandboxPreparing       Kind = "sandbox.preparing"        // Phase.Phase, Pull
	SandboxReady           Kind = "sandbox.ready"            // Phase.Image, Isolation, Boot, …
	SandboxRestarted       Kind = "sandbox.restarted"        // its container was restarted after the engine lost it: Phase.Boot
	SandboxWaiting         Kind = "sandbox.waiting"          // its container cannot be restarted yet: Error
	SandboxStopRequested   Kind = "sandbox.stop_requested"   // Reason
	SandboxStopped         Kind = "sandbox.stopped"          // Reason
	SandboxResumeRequested Kind = "sandbox.resume_requested" //
	SandboxFailed          Kind = "sandbox.failed"           // Error
	SandboxExtended        Kind = "sandbox.extended"         // Phase.ExpiresAt
	SandboxUnchanged       Kind = "sandbox.unchanged"        // a request changed nothing, and is recorded: Phase.Verb, Exec
	SandboxDeleteRequested Kind = "sandbox.delete_requested" // Reason
	SandboxHook            Kind = "sandbox.hook"             // the on_delete command has ended: Phase.ExitCode, Output; Error if it failed
	SandboxDeleted         Kind = "sandbox.deleted"          // Reason
	ExecAccepted           Kind = "exec.accepted"            // Exec.Spec
	ExecStarted            Kind = "exec.started"             // Exec.Boot
	ExecCancelRequested    Kind = "exec.cancel_requested"    //
	ExecFinished           Kind = "exec.finished"            // Exec.ExitCode, output
	ExecFailed             Kind = "exec.failed"              // Error: could not run, or was interrupted; ExitCode where it is known
	ExecCancelled          Kind = "exec.cancelled"           // Reason; ExitCode where it is known
	ExecTimedOut           Kind = "exec.timed_out"           // ExitCode where it is known
	PrimaryStarted         Kind = "primary.started"          // the sandbox's own command was started: Primary
	PrimaryEnded           Kind = "primary.ended"            // it ended, or could not be started: Primary.ExitCode; Error where it could not be started
	ServiceReady           Kind = "service.ready"            // Service.Name
	ServiceFailed          Kind = "service.failed"           // Service.Name, Error
	ServiceEnded           Kind = "service.ended"            // its command has ended, and is started again: Service.Name, ExitCode, Ends, Boot; Error where it could not be started
	ServiceHook            Kind = "service.hook"             // a post_start command has ended: Service.Name, Hook, ExitCode, Output; Error where it failed
)

// Event is one numbered entry of a sandbox's history. At most one of Phase, Exec, Service and
// Primary is set. State is the sandbox's state after the event.
type Event struct {
	Sequence uint64          `json:"seq"` // 1, 2, 3 … per sandbox, without gap or repeat
	Kind     Kind            `json:"kind"`
	Time     time.Time       `json:"time"` // by the store's clock, as its writer knows it
	State    SandboxState    `json:"state"`
	Request  string          `json:"request,omitempty"` // id of the request that caused it
	Reason   string          `json:"reason,omitempty"`
	Error    *Error          `json:"error,omitempty"`
	Phase    *SandboxDetails `json:"sandbox_details,omitempty"`
	Exec     *ExecDetails    `json:"exec,omitempty"`
	Service  *ServiceDetails `json:"service,omitempty"`
	Primary  *PrimaryDetails `json:"primary,omitempty"`

	// Filled in by the reader from the message that carried the event.
	Tenant  string `json:"tenant,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
	Writer  string `json:"writer,omitempty"`
	Token   uint64 `json:"token,omitempty"`
	Record  uint64 `json:"record,omitempty"` // stream sequence of the message
	Replay  bool   `json:"replay,omitempty"` // it was there before the follow began
}

// SandboxDetails is what a sandbox event adds to the state.
type SandboxDetails struct {
	Phase      string       `json:"phase,omitempty"` // image, network, container, start
	Spec       *SandboxSpec `json:"spec,omitempty"`  // as accepted; of an assignment: what the worker's defaults make of it, where that is something else
	Worker     string       `json:"worker,omitempty"`
	HostID     string       `json:"host_id,omitempty"`
	Generation uint64       `json:"generation,omitempty"`
	Image      string       `json:"image,omitempty"`     // id of the image that runs
	Isolation  string       `json:"isolation,omitempty"` // OCI runtime: runc, runsc, …
	Container  string       `json:"container,omitempty"` // Engine's id
	Subnet     string       `json:"subnet,omitempty"`
	Boot       string       `json:"boot,omitempty"`                // one per start of the supervisor
	ExpiresAt  time.Time    `json:"expires_at,omitempty,omitzero"` // when its ttl is over
	ExitCode   *int         `json:"exit_code,omitempty"`           // of a hook; nil: not known
	Output     []byte       `json:"output,omitempty"`              // end of what a hook printed, at most MaxLastOutput bytes
	Digest     string       `json:"digest,omitempty"`              // of the image, as its registry has it
	Ports      []Port       `json:"ports,omitempty"`               // as they were given

	Pull    *PullProgress `json:"pull,omitempty"`     // of an image, in phase image
	BuiltIn []string      `json:"built_in,omitempty"` // fields of the accepted spec that nobody said: they have the built-in values
	Verb    string        `json:"verb,omitempty"`     // of a request that changed nothing
	Exec    string        `json:"exec,omitempty"`     // id of the exec that it was about
	Name    string        `json:"name,omitempty"`     // of the accepted sandbox
}

// ExecDetails is what an exec event adds to the state.
type ExecDetails struct {
	ID          string    `json:"id"`
	State       ExecState `json:"state"` // after the event
	Spec        *ExecSpec `json:"spec,omitempty"`
	Boot        string    `json:"boot,omitempty"`             // supervisor boot that runs it
	ExitCode    *int      `json:"exit_code,omitempty"`        // nil: not known. 128+n: died of signal n
	Started     time.Time `json:"started,omitempty,omitzero"` // by the store's clock, as its worker knows it
	Ended       time.Time `json:"ended,omitempty,omitzero"`
	StdoutBytes int64     `json:"stdout_bytes,omitempty"` // kept, after the cap
	StderrBytes int64     `json:"stderr_bytes,omitempty"`
	Truncated   bool      `json:"truncated,omitempty"` // the command wrote more than was kept
	OOMKills    int       `json:"oom_kills,omitempty"` // processes of the sandbox that the kernel killed for want of memory while it ran
	Inline      bool      `json:"inline,omitempty"`    // Stdout and Stderr are all of the output; the log stream has none
	Stdout      []byte    `json:"stdout,omitempty"`
	Stderr      []byte    `json:"stderr,omitempty"`

	OutputError *Error `json:"output_error,omitempty"` // why output after StdoutBytes and StderrBytes was not kept
}

// PrimaryDetails is what an event about a sandbox's own command says of one of its runs.
type PrimaryDetails struct {
	Boot     string `json:"boot"`                // supervisor boot that runs it
	Restarts int    `json:"restarts,omitempty"`  // runs of this boot before this one
	ExitCode *int   `json:"exit_code,omitempty"` // nil: not known, or not ended. 128+n: died of signal n
	OOMKills int    `json:"oom_kills,omitempty"` // processes of the sandbox that the kernel killed for want of memory while it ran
}

// ServiceDetails is what a service event says.
type ServiceDetails struct {
	Name     string `json:"name"`
	Hook     int    `json:"hook,omitempty"`      // which of post_start, from 1
	ExitCode *int   `json:"exit_code,omitempty"` // of the hook, or the command; nil: not known
	Output   []byte `json:"output,omitempty"`    // end of what the hook printed, at most MaxLastOutput bytes

	Ends int    `json:"ends,omitempty"` // of service.ended: how often the command has ended since its container was started; ExitCode is of the last end
	Boot string `json:"boot,omitempty"` // of service.ended: that start
}

// Batch is the payload of one message of the event log: one append, one commit point. Its events
// are numbered one after another.
type Batch struct {
	Version int     `json:"v"`
	Tenant  string  `json:"tenant"`
	Sandbox string  `json:"sandbox"`
	ID      string  `json:"id"` // unique per append, so that a writer finds its own after a lost answer
	Writer  string  `json:"writer"`
	Token   uint64  `json:"token,omitempty"`
	Events  []Event `json:"events"`

	Record uint64 `json:"-"` // stream sequence of the message, filled in by the reader
}

// DecodeBatch reads one message of the event log and fills in what its events take from it.
// record is the stream sequence of the message. A batch without events, or whose events are not
// numbered one after another from 1 or more, is refused with invalid_argument.
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

// Check refuses a batch of a version that this code does not know, one without events, and one
// whose events are not numbered one after another from 1 or more.
func (b *Batch) Check() error {
	if err := CheckVersion(b.Version); err != nil {
		return err
	}
	if len(b.Events) == 0 {
		return Errorf(InvalidArgument, ReasonUndecodable, "a batch without events")
	}
	for i, e := range b.Events {
		if want := b.First() + uint64(i); e.Sequence != want || want == 0 {
			return Errorf(InvalidArgument, ReasonUndecodable, "event %d of a batch from %d has the number %d", i, b.First(), e.Sequence)
		}
	}
	return nil
}

// Fill sets on each event what it takes from the message that carries it, and takes back Replay,
// which only a reader may say.
func (b *Batch) Fill(record uint64) {
	b.Record = record
	for i := range b.Events {
		e := &b.Events[i]
		e.Tenant, e.Sandbox, e.Writer, e.Token, e.Record, e.Replay = b.Tenant, b.Sandbox, b.Writer, b.Token, record, false
	}
}

// Encode writes the batch without what its events take from it.
func (b *Batch) Encode() []byte {
	bare := *b
	bare.Events = make([]Event, len(b.Events))
	for i, e := range b.Events {
		e.Tenant, e.Sandbox, e.Writer, e.Token, e.Record, e.Replay = "", "", "", 0, 0, false
		bare.Events[i] = e
	}
	return Encode(&bare)
}

// First is the number of the batch's first event. It panics on a batch without events, which
// [DecodeBatch] refuses.
func (b *Batch) First() uint64 { return b.Events[0].Sequence }

// Last is the number of the batch's last event. It panics on a batch without events, as First.
func (b *Batch) Last() uint64 { return b.Events[len(b.Events)-1].Sequence }

// Headers are what a person reads beside the payload. Their size does not grow with the number of
// events: a server takes 64 KiB of headers at most. It panics on a batch without events.
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

// listedKinds is up to how many events the header names the kind of each.
const listedKinds = 8

// kindsOf names the kinds of some events, "a,b", in their order. Of many it names each kind once, with
// how often it comes: "a*9,b".
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
