package protocol

import "time"

// Request is the payload that a client publishes to [RequestSubject]. Tenant, verb and sandbox come from the subject,
// never from the payload; the request id is the message id. Except in a create, the subject may contain the sandbox's
// name instead of its id.
//
//	create  Sandbox (required), Name, Ensure
//	exec    ExecID, Exec (required)
//	cancel  ExecID (required)
//	signal  ExecID, Signal (required), Tree
//	extend  TTL (required)
//	stop, resume, delete  no fields
type Request struct {
	Version int          `json:"v"`
	Sandbox *SandboxSpec `json:"sandbox,omitempty"`
	ExecID  string       `json:"exec_id,omitempty"`
	Exec    *ExecSpec    `json:"exec,omitempty"`
	TTL     Duration     `json:"ttl,omitempty"`  // time from now until the sandbox is deleted
	Name    string       `json:"name,omitempty"` // name of the sandbox; see [ValidateName]

	// Ensure makes a create with a name return the living sandbox that has the name, if there is one and its spec is
	// equal.
	Ensure bool `json:"ensure,omitempty"`

	Signal string `json:"signal,omitempty"` // name or number of a signal; see [ParseSignal]
	Tree   bool   `json:"tree,omitempty"`   // send the signal to all processes of the exec, not only to its main process
}

// Reply is the answer to a request and to every call of the read service.
type Reply struct {
	Version  int      `json:"v"`
	Error    *Error   `json:"error,omitempty"`
	Sandbox  *Sandbox `json:"sandbox,omitempty"`
	Exec     *Exec    `json:"exec,omitempty"`
	Sequence uint64   `json:"sequence,omitempty"` // sequence of the sandbox's last event at the time of the reply
	Changed  bool     `json:"changed,omitempty"`  // this request changed something
	Waiting  *Error   `json:"waiting,omitempty"`  // why the request is not decided yet; the outcome follows

	Sandboxes []*Sandbox   `json:"sandboxes,omitempty"`
	Execs     []*Exec      `json:"execs,omitempty"`
	Hosts     []*Host      `json:"hosts,omitempty"`
	Next      string       `json:"next,omitempty"` // page token; empty on the last page
	Explain   *Explanation `json:"explain,omitempty"`
	Ping      *Ping        `json:"ping,omitempty"`
	Defaults  *SandboxSpec `json:"defaults,omitempty"` // the tenant's defaults, for fields that a spec does not set
	Awaited   []string     `json:"awaited,omitempty"`  // the query's images that pending sandboxes wait for
	History   *EventPage   `json:"history,omitempty"`
	Output    *OutputPage  `json:"output,omitempty"`
	Batches   *BatchPage   `json:"batches,omitempty"`
	Chunks    *ChunkPage   `json:"chunks,omitempty"`
	Upload    *Upload      `json:"upload,omitempty"`
	Tenant    *Tenant      `json:"tenant,omitempty"`
	Tenants   []*Tenant    `json:"tenants,omitempty"`
	Writers   *WriterPage  `json:"writers,omitempty"`
	Messages  *MessagePage `json:"messages,omitempty"`
	Checkup   *Checkup     `json:"checkup,omitempty"`

	Usage     *SandboxUsage `json:"usage,omitempty"`
	Processes *ProcessList  `json:"processes,omitempty"`

	Secrets  []*SecretInfo `json:"secrets,omitempty"`
	Secret   *SecretInfo   `json:"secret,omitempty"`    // what a [SecretRequest] set: the version alone
	FleetKey string        `json:"fleet_key,omitempty"` // public curve key (xkey) to which clients seal values
}

// Interim reports whether the outcome of the request may follow this reply. The reply then only says why the request
// waits, or that this copy of the request was not accepted because the queue is full.
func (r *Reply) Interim() bool {
	return r.Waiting != nil || r.Error != nil && r.Error.Reason == ReasonQueueFull
}

// Query is the request of every endpoint of the read service. An endpoint rejects fields that it does not use.
type Query struct {
	Version     int               `json:"v"`
	Sandbox     string            `json:"sandbox,omitempty"` // id or name
	Exec        string            `json:"exec,omitempty"`
	MinSequence uint64            `json:"min_sequence,omitempty"` // wait for a state at least this new
	Labels      map[string]string `json:"labels,omitempty"`       // labels that a sandbox must have
	States      []string          `json:"states,omitempty"`       // wanted states; empty: all except deleted
	// Number of items, 1 to 1000, default 100. For output the number of bytes, 1 to [MaxOutputPage], which is the
	// default.
	Limit   int      `json:"limit,omitempty"`
	Page    string   `json:"page,omitempty"`    // Next of the previous page
	Images  []string `json:"images,omitempty"`  // full references and ids
	From    uint64   `json:"from,omitempty"`    // sequence of the first event; 0: the oldest retained one
	Service string   `json:"service,omitempty"` // service whose own output to read
	Stream  string   `json:"stream,omitempty"`  // stdout (default) or stderr
	Offset  int64    `json:"offset,omitempty"`  // byte offset at which to start
	Name    string   `json:"name,omitempty"`    // only sandboxes with this name
	After   uint64   `json:"after,omitempty"`   // record after which to start
	Newest  bool     `json:"newest,omitempty"`  // only the newest batch
	Digest  string   `json:"digest,omitempty"`  // digest of an upload
	Keys    []string `json:"keys,omitempty"`    // public user keys of NATS, at most [MaxKeys]
}

// Endpoints of the read service. Each comment lists the fields of [Query] that the endpoint uses.
const (
	EndpointPing    = "ping"
	EndpointGet     = "get"     // Sandbox
	EndpointList    = "list"    // Labels, Name, States, Limit, Page
	EndpointExec    = "exec"    // Sandbox, Exec
	EndpointExecs   = "execs"   // Sandbox, States, Limit, Page
	EndpointExplain = "explain" // Sandbox
	EndpointHosts   = "hosts"
	EndpointEvents  = "events"  // Sandbox, From, Limit
	EndpointOutput  = "output"  // Sandbox, Exec or Service, Stream, Offset, Limit
	EndpointResolve = "resolve" // Sandbox: also a unique prefix of a generated id

	EndpointBatches = "batches" // Sandbox, After or From or Newest
	EndpointChunks  = "chunks"  // Sandbox, Exec or Service or neither, After

	EndpointMessages = "messages" // Sandbox, After
	EndpointWriters  = "writers"  // Keys

	EndpointUploaded = "uploaded" // Digest

	EndpointTenant  = "tenant"  // no fields
	EndpointTenants = "tenants" // Limit, Page; for operators and fleet viewers

	EndpointCheckup = "checkup" // no fields; the late work of the tenant, or of all for operators and fleet viewers

	EndpointUsage     = "usage"     // Sandbox: what its containers use now
	EndpointProcesses = "processes" // Sandbox

	EndpointSecrets  = "secrets"   // Limit, Page
	EndpointFleetKey = "fleet-key" // no fields

	EndpointDefaults = "defaults"
	EndpointAwaited  = "awaited" // Images; workers use it, for all tenants
)

// Ping identifies the coordinator that answered and describes its deployment.
type Ping struct {
	Version     string    `json:"version"`
	Coordinator string    `json:"coordinator"`
	Deployment  string    `json:"deployment"`
	Durability  string    `json:"durability"` // which failures an acknowledged write survives, in words
	Leader      bool      `json:"leader"`     // the answering coordinator holds the scheduler lock
	Hosts       int       `json:"hosts"`
	Time        time.Time `json:"time"`
	Storage     *Storage  `json:"storage,omitempty"` // current state of the stores

	// Skew is how far the answering coordinator's wall clock is ahead of the store's; nil: unknown.
	Skew *Duration `json:"skew,omitempty"`

	// Clocks lists the machines whose clock differs from the store's by more than [MaxSkew], one sentence each.
	Clocks []string `json:"clocks,omitempty"`

	// Refused is how many messages of the event log the answering coordinator has refused since its start, because their
	// writer is not proven. A message counts each time the coordinator reads it.
	Refused uint64 `json:"refused,omitempty"`

	// Endpoints are the endpoints that the answering coordinator serves, sorted. Empty: a coordinator of an earlier
	// version.
	Endpoints []string `json:"endpoints,omitempty"`

	// FleetKey is the public fleet key to which the answering coordinator lets clients seal. [NoFleetKey]: it has none.
	// Empty: a coordinator of an earlier version.
	FleetKey string `json:"fleet_key,omitempty"`
}

// Storage is the current state of the stores, which may be less safe than configured. Sizes are in bytes.
type Storage struct {
	Streams  []StreamStorage `json:"streams,omitempty"`
	Bytes    int64           `json:"bytes,omitempty"`     // used by all streams, counting one replica of each
	MaxBytes int64           `json:"max_bytes,omitempty"` // the account's limit; 0: no limit
	DiskFree int64           `json:"disk_free,omitempty"` // free space on the embedded server's disk; 0: unknown
	DiskSize int64           `json:"disk_size,omitempty"`
	Problems []string        `json:"problems,omitempty"` // what is wrong now, one sentence each
	Warnings []string        `json:"warnings,omitempty"` // what may soon be wrong, one sentence each
}

// StreamStorage is the state of one stream or bucket. Sizes are in bytes.
type StreamStorage struct {
	Name     string   `json:"name"`
	Leader   string   `json:"leader,omitempty"` // server name; empty: none, or a single server without a cluster
	Replicas int      `json:"replicas,omitempty"`
	InSync   int      `json:"in_sync,omitempty"` // replicas that are up to date, including the leader
	Behind   []string `json:"behind,omitempty"`  // servers whose replicas are not up to date
	Messages uint64   `json:"messages"`
	Bytes    int64    `json:"bytes"`
	MaxBytes int64    `json:"max_bytes,omitempty"` // 0: no limit
	Error    string   `json:"error,omitempty"`     // why the state is unknown
}

// Explanation says why a sandbox is waiting.
type Explanation struct {
	Sandbox  *Sandbox      `json:"sandbox"`
	Waiting  string        `json:"waiting"` // one sentence
	Since    time.Time     `json:"since,omitempty,omitzero"`
	Deadline time.Time     `json:"deadline,omitempty,omitzero"`
	Position int           `json:"position,omitempty"` // position in the placement queue, from 1
	Hosts    []HostRefusal `json:"hosts,omitempty"`    // why each host does not take the sandbox
}

// HostRefusal says why a host does not take a sandbox. An empty reason means that the host would take it.
type HostRefusal struct {
	Worker string `json:"worker"`
	Reason string `json:"reason,omitempty"`
}

// WorkItem notifies a worker that a sandbox has news. It carries the newest batch, so that the worker need not read it
// from the event log. A coordinator that has a key puts its signature of [NotifiedText] into the header
// [HeaderSignature].
type WorkItem struct {
	Version int    `json:"v"`
	Batch   *Batch `json:"batch,omitempty"`
	Record  uint64 `json:"record,omitempty"` // stream sequence of Batch
	Hash    []byte `json:"hash,omitempty"`   // [PayloadHash] of the message of Batch; empty: unknown
	Signed  bool   `json:"signed,omitempty"` // the message of Batch is signed
}

// Host is a worker's description of its host, with the fields that the coordinator adds.
type Host struct {
	Version   int               `json:"v"`
	Worker    string            `json:"worker"`
	HostID    string            `json:"host_id"`  // stored in the engine's marker volume
	Instance  string            `json:"instance"` // the worker process
	Token     uint64            `json:"token"`    // fencing token of the host lock
	Build     string            `json:"build"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots"` // maximum number of sandboxes
	CPU       float64           `json:"cpu"`
	Cores     int               `json:"cores,omitempty"` // cores of the machine, offered or not; 0: unknown
	Memory    Bytes             `json:"memory"`
	Engine    string            `json:"engine"` // Engine version
	Runtime   string            `json:"runtime"`
	Mounts    []string          `json:"mounts,omitempty"`          // allow-list for mounts
	Writable  []string          `json:"writable_mounts,omitempty"` // entries of Mounts that may be mounted writable
	Tools     []string          `json:"tools,omitempty"`           // built-in tools that the host provides
	Runtimes  []string          `json:"runtimes,omitempty"`        // OCI runtimes that sandboxes may choose
	Profiles  []string          `json:"profiles,omitempty"`        // capability profiles that sandboxes may choose
	GPUs      int               `json:"gpus,omitempty"`
	DiskQuota bool              `json:"disk_quota,omitempty"` // spec.disk can be enforced
	// Disk is the space available to sandboxes, in bytes; 0: unknown, or no quota.
	Disk Bytes `json:"disk,omitempty"`
	// PIDs is the number of processes and threads that the kernel allows; 0: unknown.
	PIDs int64 `json:"pids,omitempty"`
	// Firewall is "nftables" if rules isolate the networks of sandboxes, and "off" if the operator has turned isolation
	// off. It is empty if the worker cannot isolate these networks; then the host takes no sandboxes.
	Firewall string `json:"firewall,omitempty"`
	Images   bool   `json:"tells_images,omitempty"` // the worker reports its images in [HostImages]
	Healthy  bool   `json:"healthy"`                // the engine answers
	Problem  string `json:"problem,omitempty"`
	Full     string `json:"full,omitempty"` // why the host takes no new sandboxes: which resource is short
	// Defaults are the operator's defaults for the specs of sandboxes on this host.
	Defaults  *SandboxSpec `json:"defaults,omitempty"`
	StartedAt time.Time    `json:"started_at,omitempty,omitzero"`

	// Capability profiles that services may choose. Empty: an older worker, whose services all have the
	// standard profile.
	ServiceProfiles []string `json:"service_profiles,omitempty"`

	// IPv4 ranges that the operator denies to every sandbox, whatever its spec allows.
	DenyNetworks []string `json:"deny_networks,omitempty"`

	// Private IPv4 ranges that the operator lets specs allow. Of any other range in its spec, a sandbox reaches only
	// the public addresses.
	AllowNetworks []string `json:"allow_networks,omitempty"`

	// Maximum spec.pids of one container. 0: an older worker, whose maximum is [MaxPIDs].
	MostPIDs int64 `json:"most_pids,omitempty"`

	// What isolates the sandboxes of the host; nil: an older worker.
	Posture *Posture `json:"posture,omitempty"`

	// Loopback ports that may be published, "FIRST-LAST". Empty: an older worker, which publishes any.
	Ports string `json:"ports,omitempty"`

	// Registries that the worker pulls images from, as host or host:port. docker.io is Docker Hub, and public means
	// every registry at a public address. Empty: an older worker, which pulls from any.
	Registries []string `json:"registries,omitempty"`

	// The worker passes input to running execs: see [ExecSpec.OpenStdin].
	TakesInput bool `json:"takes_input,omitempty"`

	// The worker can read segments, the parts of histories that are no longer in the event log. Otherwise the
	// log retains the whole history of its sandboxes.
	ReadsSegments bool `json:"reads_segments,omitempty"`

	// CredentialsExpire is when NATS stops accepting the worker's credentials; zero: never, or it has none.
	// CredentialsIssued is when they were made; zero: unknown.
	CredentialsExpire time.Time `json:"credentials_expire,omitempty,omitzero"`
	CredentialsIssued time.Time `json:"credentials_issued,omitempty,omitzero"`

	// LeaseTTL is how long the lock of the host lasts without renewal; 0: an older worker.
	LeaseTTL Duration `json:"lease_ttl,omitempty"`

	// Speaks and Oldest are the newest and the oldest version of the wire schema that the worker reads and writes, see
	// [Host.WireVersions]. 0: an older worker, which speaks version 1 only.
	Speaks int `json:"speaks,omitempty"`
	Oldest int `json:"oldest,omitempty"`

	// The coordinator fills in State and all following fields.
	State HostState `json:"state,omitempty"`

	// Unsupported says why the worker's version gets no sandboxes; empty: its version is supported.
	Unsupported string `json:"unsupported,omitempty"`

	Sandboxes int       `json:"sandboxes,omitempty"`
	UsedCPU   float64   `json:"used_cpu,omitempty"`
	UsedMem   Bytes     `json:"used_memory,omitempty"`
	UsedDisk  Bytes     `json:"used_disk,omitempty"`
	UsedPIDs  int64     `json:"used_pids,omitempty"`
	UsedGPUs  int       `json:"used_gpus,omitempty"`
	SeenAt    time.Time `json:"seen_at,omitempty,omitzero"`

	// Skew is how far the host's wall clock is ahead of the store's, as its worker last measured it; nil: unknown.
	// ClockOff reports that the clocks differ by more than [MaxSkew].
	Skew     *Duration `json:"skew,omitempty"`
	ClockOff bool      `json:"clock_off,omitempty"`

	// LeaseMargin, DiskFree and DiskSize are those of the last [Heartbeat].
	LeaseMargin *Duration `json:"lease_margin,omitempty"`
	DiskFree    Bytes     `json:"disk_free,omitempty"`
	DiskSize    Bytes     `json:"disk_size,omitempty"`

	Cordoned bool           `json:"cordoned,omitempty"` // operator intent: no new work
	Drain    *HostDrain     `json:"drain,omitempty"`    // operator intent: move or end what runs here
	Holds    map[string]int `json:"holds,omitempty"`    // number of sandboxes on the host by state, across all tenants
	Execs    int            `json:"execs,omitempty"`    // number of execs on the host that have not ended
}

// Boxfleet reports a machine whose wall clock differs from the store's clock by more than MaxSkew. Boxfleet decides
// nothing by the machines' wall clocks, but sandboxes see these clocks, and timestamps in the machine's logs are wrong.
const MaxSkew = 5 * time.Second

// Values of [Host.Firewall].
const (
	FirewallNFTables = "nftables" // the networks of sandboxes are isolated
	FirewallOff      = "off"      // disabled by the operator: sandboxes reach whatever the host reaches
)

// HostState is the state of a host, which a coordinator derives from its heartbeats, health and lease.
type HostState string

// The states of a host.
const (
	HostReady     HostState = "ready"
	HostUnhealthy HostState = "unhealthy" // heartbeats arrive, but the engine does not answer: no new work
	HostSuspect   HostState = "suspect"   // no recent heartbeat: no new work
	HostLost      HostState = "lost"      // its lock lease has expired
)

// Heartbeat is the message that a worker publishes every second.
type Heartbeat struct {
	Version  int    `json:"v"`
	Worker   string `json:"worker"`
	HostID   string `json:"host_id"`
	Instance string `json:"instance"`
	Healthy  bool   `json:"healthy"`
	Problem  string `json:"problem,omitempty"`
	Full     string `json:"full,omitempty"`

	// Listening increases whenever work items may have been lost on the way to the worker. The worker is then
	// notified again about everything pending.
	Listening uint64 `json:"listening,omitempty"`

	// Skew is how far the worker's wall clock is ahead of the store's; nil: unknown. The worker measures it,
	// because a heartbeat that arrives late says nothing about clocks.
	Skew *Duration `json:"skew,omitempty"`

	// LeaseMargin is how long the worker may still trust the host's lock without a renewal. Nil: for at least a third of
	// the lock's time to live, or an older worker.
	LeaseMargin *Duration `json:"lease_margin,omitempty"`

	// Free space and size of the fullest of the disks of the engine and the worker; 0: unknown. DiskFree is rounded to a
	// hundredth of the disk, so that most heartbeats are equal.
	DiskFree Bytes `json:"disk_free,omitempty"`
	DiskSize Bytes `json:"disk_size,omitempty"`
}

// Reservation is the stored value of a reserved id.
type Reservation struct {
	Version     int       `json:"v"`
	Request     string    `json:"request"`     // id of the request that reserved the id
	Fingerprint string    `json:"fingerprint"` // fingerprint of the requested spec
	Time        time.Time `json:"time"`
}

// NameHold is the stored value of a sandbox name. It says which sandbox has the name.
type NameHold struct {
	Version int    `json:"v"`
	Sandbox string `json:"sandbox"`
	Request string `json:"request"` // id of the create that took the name
	// Stored is the stream sequence of that request. In requests with a lower sequence, the name still means the
	// sandbox in Before.
	Stored uint64 `json:"stored"`
	Before string `json:"before,omitempty"` // the previous sandbox with this name

	BeforeStored uint64 `json:"before_stored,omitempty"` // value of Stored for the previous holder

	// Fingerprint is the [Fingerprint] of the spec in that request. Empty: a coordinator of an earlier version wrote the
	// value.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Validate checks that a request has the fields that its verb needs, no others, and a valid spec. It returns the errors
// of [SandboxSpec.Validate] and [ExecSpec.Validate], with Field as the path in the payload.
func (r *Request) Validate(verb string) error { return WithPayloadField(verb, r.validate(verb)) }

func (r *Request) validate(verb string) error {
	uses := func(field string, present, used bool) error {
		if present && !used {
			return Invalid(field, "is not used by %s", verb)
		}
		if !present && used {
			return Invalid(field, "is required by %s", verb)
		}
		return nil
	}
	sandbox, execID, exec, ttl, signal, err := fieldsOf(verb)
	if err != nil {
		return err
	}
	for _, err := range []error{
		uses("sandbox", r.Sandbox != nil, sandbox), uses("exec_id", r.ExecID != "", execID),
		uses("exec", r.Exec != nil, exec), uses("ttl", r.TTL != 0, ttl), uses("name", r.Name != "", sandbox && r.Name != ""),
		uses("ensure", r.Ensure, sandbox && r.Ensure), uses("signal", r.Signal != "", signal),
		uses("tree", r.Tree, signal && r.Tree),
	} {
		if err != nil {
			return err
		}
	}
	if r.Ensure && r.Name == "" {
		return Invalid("name", "is required with ensure")
	}
	if r.TTL < 0 {
		return Invalid("ttl", "must be positive, got %s", r.TTL)
	}
	if execID {
		if err := ValidateID("exec_id", r.ExecID); err != nil {
			return err
		}
	}
	if signal {
		_, err := ParseSignal("signal", r.Signal)
		return err
	}
	if exec {
		return r.Exec.Validate()
	}
	if sandbox {
		if r.Name != "" {
			if err := ValidateName("name", r.Name); err != nil {
				return err
			}
		}
		return r.Sandbox.Validate()
	}
	return nil
}

// fieldsOf returns which fields a verb needs.
func fieldsOf(verb string) (sandbox, execID, exec, ttl, signal bool, err error) {
	switch verb {
	case VerbCreate:
		sandbox = true
	case VerbExec:
		execID, exec = true, true
	case VerbCancel:
		execID = true
	case VerbSignal:
		execID, signal = true, true
	case VerbExtend:
		ttl = true
	case VerbStop, VerbResume, VerbDelete:
	default:
		err = Invalid("verb", "must be create, exec, cancel, signal, stop, resume, delete or extend, got %.40q", verb)
	}
	return sandbox, execID, exec, ttl, signal, err
}

// Status is the message that a coordinator publishes on [StatusSubject] when it starts or stops waiting, and every
// [StatusPeriod] in between. It is a core NATS message, so it may be lost.
type Status struct {
	Version     int       `json:"v"`
	Coordinator string    `json:"coordinator"`
	Waiting     *Error    `json:"waiting,omitempty"` // why no creates and execs are decided now; nil: they are
	Time        time.Time `json:"time"`

	// Elected reports that the event log or the output log has a new leader. The old leader may not have published its
	// last stored messages, so followers should read these messages from the log.
	Elected bool `json:"elected,omitempty"`
}

const (
	// StatusPeriod is the interval of a waiting coordinator's status.
	StatusPeriod = 2 * time.Second
	// StatusAge is how long a status is valid unless it is repeated.
	StatusAge = 5 * time.Second
)
