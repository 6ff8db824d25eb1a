package protocol

import "time"

// Request is what a client publishes to [RequestSubject]. Tenant, verb and sandbox come from the
// subject, never from the payload; the request id comes from the message id. In every request but a create the
// subject may say the sandbox's name instead of its id.
//
//	create  Sandbox (required), Name
//	exec    ExecID, Exec (required)
//	cancel  ExecID (required)
//	extend  TTL (required)
//	stop, resume, delete  nothing more
type Request struct {
	Version int          `json:"v"`
	Sandbox *SandboxSpec `json:"sandbox,omitempty"`
	ExecID  string       `json:"exec_id,omitempty"`
	Exec    *ExecSpec    `json:"exec,omitempty"`
	TTL     Duration     `json:"ttl,omitempty"`  // the sandbox is deleted after this time, counted from now
	Name    string       `json:"name,omitempty"` // of the sandbox; see [ValidateName]
}

// Reply answers a request, and every call of the read service.
type Reply struct {
	Version  int      `json:"v"`
	Error    *Error   `json:"error,omitempty"`
	Sandbox  *Sandbox `json:"sandbox,omitempty"`
	Exec     *Exec    `json:"exec,omitempty"`
	Sequence uint64   `json:"sequence,omitempty"` // of the sandbox's last event when this was written
	Changed  bool     `json:"changed,omitempty"`  // the request itself changed something
	Waiting  *Error   `json:"waiting,omitempty"`  // why the request cannot be decided yet: not an outcome, which follows

	Sandboxes []*Sandbox   `json:"sandboxes,omitempty"`
	Execs     []*Exec      `json:"execs,omitempty"`
	Hosts     []*Host      `json:"hosts,omitempty"`
	Next      string       `json:"next,omitempty"` // page token; empty on the last page
	Explain   *Explanation `json:"explain,omitempty"`
	Ping      *Ping        `json:"ping,omitempty"`
	Defaults  *SandboxSpec `json:"defaults,omitempty"` // what lies below the specs of the tenant's creates
	Awaited   []string     `json:"awaited,omitempty"`  // those of Images that pending sandboxes wait for
	History   *EventPage   `json:"history,omitempty"`
	Output    *OutputPage  `json:"output,omitempty"`
}

// Query is the request of every endpoint of the read service. Fields that an endpoint does not
// use are refused there.
type Query struct {
	Version     int               `json:"v"`
	Sandbox     string            `json:"sandbox,omitempty"` // its id or its name
	Exec        string            `json:"exec,omitempty"`
	MinSequence uint64            `json:"min_sequence,omitempty"` // answer from a state at least this new
	Labels      map[string]string `json:"labels,omitempty"`       // equality, all must match
	States      []string          `json:"states,omitempty"`       // any may match; empty: all but deleted
	Limit       int               `json:"limit,omitempty"`        // 1 to 1000, default 100; of output bytes, 1 to [MaxOutputPage], which is the default
	Page        string            `json:"page,omitempty"`         // the Next of the page before
	Images      []string          `json:"images,omitempty"`       // full references, and ids
	From        uint64            `json:"from,omitempty"`         // number of the first event wanted; 0: the oldest that is kept
	Service     string            `json:"service,omitempty"`      // whose own output is wanted
	Stream      string            `json:"stream,omitempty"`       // stdout (default) or stderr
	Offset      int64             `json:"offset,omitempty"`       // of the first byte wanted
	Name        string            `json:"name,omitempty"`         // only sandboxes with this name
}

// Endpoints of the read service.
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
	EndpointResolve = "resolve" // Sandbox: also a prefix of a generated id, if it is that of one sandbox only

	EndpointDefaults = "defaults"
	EndpointAwaited  = "awaited" // Images; of every tenant, for workers
)

// Ping tells who answered, and what the deployment promises.
type Ping struct {
	Version     string    `json:"version"`
	Coordinator string    `json:"coordinator"`
	Deployment  string    `json:"deployment"`
	Durability  string    `json:"durability"` // what an acknowledged write survives, in words
	Leader      bool      `json:"leader"`     // the one that answered holds the scheduler lock
	Hosts       int       `json:"hosts"`
	Time        time.Time `json:"time"`
	Storage     *Storage  `json:"storage,omitempty"` // what is kept where, as it is now

	// Skew is how far the wall clock of the coordinator that answered is ahead of the store's; nil: not known.
	Skew *Duration `json:"skew,omitempty"`

	// Clocks describes, one sentence each, the machines whose clock differs from the store's by more than [MaxSkew].
	Clocks []string `json:"clocks,omitempty"`
}

// Storage is how what is stored is kept now, which may be less safe than it was configured.
type Storage struct {
	Streams  []StreamStorage `json:"streams,omitempty"`
	Bytes    int64           `json:"bytes,omitempty"`     // used by all streams, one replica of each
	MaxBytes int64           `json:"max_bytes,omitempty"` // that the account may use; 0: not limited there
	DiskFree int64           `json:"disk_free,omitempty"` // of the embedded server's disk; 0: not known
	DiskSize int64           `json:"disk_size,omitempty"`
	Problems []string        `json:"problems,omitempty"` // what does not hold now, a sentence each
	Warnings []string        `json:"warnings,omitempty"` // what soon will not
}

// StreamStorage is one stream or bucket.
type StreamStorage struct {
	Name     string   `json:"name"`
	Leader   string   `json:"leader,omitempty"` // server; empty: none, or one server without a cluster
	Replicas int      `json:"replicas,omitempty"`
	InSync   int      `json:"in_sync,omitempty"` // the leader and those that have all it has
	Behind   []string `json:"behind,omitempty"`  // the servers of the other replicas
	Messages uint64   `json:"messages"`
	Bytes    int64    `json:"bytes"`
	MaxBytes int64    `json:"max_bytes,omitempty"` // 0: no limit
	Error    string   `json:"error,omitempty"`     // why nothing is known
}

// Explanation says what a sandbox waits for.
type Explanation struct {
	Sandbox  *Sandbox      `json:"sandbox"`
	Waiting  string        `json:"waiting"` // one sentence
	Since    time.Time     `json:"since,omitempty,omitzero"`
	Deadline time.Time     `json:"deadline,omitempty,omitzero"`
	Position int           `json:"position,omitempty"` // place among the waiting, from 1
	Hosts    []HostRefusal `json:"hosts,omitempty"`    // per host why it does not take the sandbox
}

// HostRefusal is why one host does not take a sandbox. An empty reason means that it would.
type HostRefusal struct {
	Worker string `json:"worker"`
	Reason string `json:"reason,omitempty"`
}

// WorkItem tells a worker to look at a sandbox; Events is the newest of its history, so that the
// worker need not read what it is about to learn.
type WorkItem struct {
	Version int    `json:"v"`
	Batch   *Batch `json:"batch,omitempty"`
	Record  uint64 `json:"record,omitempty"` // stream sequence of Batch
}

// Host is what a worker says of itself, and what the coordinators make of it.
type Host struct {
	Version   int               `json:"v"`
	Worker    string            `json:"worker"`
	HostID    string            `json:"host_id"`  // from the engine's marker volume
	Instance  string            `json:"instance"` // one per process
	Token     uint64            `json:"token"`    // fencing token of the host lock
	Build     string            `json:"build"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots"` // sandboxes at most
	CPU       float64           `json:"cpu"`
	Cores     int               `json:"cores,omitempty"` // that it has, whatever it offers; 0: not known
	Memory    Bytes             `json:"memory"`
	Engine    string            `json:"engine"` // Engine version
	Runtime   string            `json:"runtime"`
	Mounts    []string          `json:"mounts,omitempty"`          // allow-list for mounts
	Writable  []string          `json:"writable_mounts,omitempty"` // what of it may be mounted writable
	Tools     []string          `json:"tools,omitempty"`           // builtin tools that it has
	Runtimes  []string          `json:"runtimes,omitempty"`        // OCI runtimes that a sandbox may choose
	Profiles  []string          `json:"profiles,omitempty"`        // capability profiles that a sandbox may choose
	GPUs      int               `json:"gpus,omitempty"`
	DiskQuota bool              `json:"disk_quota,omitempty"`   // spec.disk can be kept
	Disk      Bytes             `json:"disk,omitempty"`         // that its sandboxes may be promised; 0: not known, or no quota
	PIDs      int64             `json:"pids,omitempty"`         // processes and threads that its kernel allows; 0: not known
	Firewall  string            `json:"firewall,omitempty"`     // what isolates the networks of sandboxes: nftables, off, or "": nothing, and no sandbox is taken
	Images    bool              `json:"tells_images,omitempty"` // it says in [HostImages] which images it has
	Healthy   bool              `json:"healthy"`                // the Engine answers
	Problem   string            `json:"problem,omitempty"`
	Full      string            `json:"full,omitempty"`     // why it takes no new sandboxes: something of it runs short
	Defaults  *SandboxSpec      `json:"defaults,omitempty"` // what its operator wants below the specs of the sandboxes here
	StartedAt time.Time         `json:"started_at,omitempty,omitzero"`

	// Capability profiles that a service may choose. None: the worker is an older one, whose services
	// all have the standard profile.
	ServiceProfiles []string `json:"service_profiles,omitempty"`

	// IPv4 ranges that its operator lets no sandbox reach, whatever its network allows.
	DenyNetworks []string `json:"deny_networks,omitempty"`

	// Private IPv4 ranges that its operator lets specs allow. Of all others they get what is public.
	AllowNetworks []string `json:"allow_networks,omitempty"`

	// Processes and threads that a spec may give one container. 0: the worker is an older one, which gives [MaxPIDs].
	MostPIDs int64 `json:"most_pids,omitempty"`

	// What keeps its sandboxes from it and from each other; nil: the worker is an older one.
	Posture *Posture `json:"posture,omitempty"`

	// Ports of its loopback that may be published, "FIRST-LAST". "": the worker is an older one, which publishes any.
	Ports string `json:"ports,omitempty"`

	// Registries that its worker pulls images from, as host or host:port; docker.io is Docker Hub, and public
	// stands for all at public addresses. None: the worker is an older one, which pulls from all.
	Registries []string `json:"registries,omitempty"`

	// Its worker reads the parts of histories that are no longer in the event log. The sandboxes of one that
	// does not keep their whole history there.
	ReadsSegments bool `json:"reads_segments,omitempty"`

	// Filled in by the coordinator.
	State     HostState `json:"state,omitempty"`
	Sandboxes int       `json:"sandboxes,omitempty"`
	UsedCPU   float64   `json:"used_cpu,omitempty"`
	UsedMem   Bytes     `json:"used_memory,omitempty"`
	UsedDisk  Bytes     `json:"used_disk,omitempty"`
	UsedPIDs  int64     `json:"used_pids,omitempty"`
	UsedGPUs  int       `json:"used_gpus,omitempty"`
	SeenAt    time.Time `json:"seen_at,omitempty,omitzero"`

	// Skew is how far the host's wall clock is ahead of the store's, as its worker last measured it; nil: not
	// known. ClockOff says that it is more than [MaxSkew], in either direction.
	Skew     *Duration `json:"skew,omitempty"`
	ClockOff bool      `json:"clock_off,omitempty"`

	Cordoned bool           `json:"cordoned,omitempty"` // an operator wants it to get no new work
	Drain    *HostDrain     `json:"drain,omitempty"`    // and what is on it to go
	Holds    map[string]int `json:"holds,omitempty"`    // how many sandboxes are on it, by state, of all tenants
	Execs    int            `json:"execs,omitempty"`    // of theirs, that have not ended
}

// MaxSkew is how far a machine's wall clock may be from the store's before that is reported. Nothing is
// decided by such a clock; but what runs on the machine sees it, and times in its logs are wrong.
const MaxSkew = 5 * time.Second

// What a host says of its firewall.
const (
	FirewallNFTables = "nftables" // the networks of sandboxes are kept apart
	FirewallOff      = "off"      // the operator wants none: sandboxes reach what the host reaches
)

// HostState is what a coordinator makes of a host's heartbeats, health and lease.
type HostState string

// The states of a host.
const (
	HostReady     HostState = "ready"
	HostUnhealthy HostState = "unhealthy" // heartbeats come, its Engine does not answer: no new work
	HostSuspect   HostState = "suspect"   // no heartbeat for a while: no new work
	HostLost      HostState = "lost"      // its lock lease is over
)

// Heartbeat is published by a worker every second.
type Heartbeat struct {
	Version  int    `json:"v"`
	Worker   string `json:"worker"`
	HostID   string `json:"host_id"`
	Instance string `json:"instance"`
	Healthy  bool   `json:"healthy"`
	Problem  string `json:"problem,omitempty"`
	Full     string `json:"full,omitempty"`

	// Listening grows each time that work items may have been lost on the way to the worker. It is
	// told everything that it owes then.
	Listening uint64 `json:"listening,omitempty"`

	// Skew is how far the worker's wall clock is ahead of the store's, as it measured it itself: a heartbeat
	// that comes late says nothing of clocks. nil: not known.
	Skew *Duration `json:"skew,omitempty"`
}

// Reservation is the value of an id in the registry.
type Reservation struct {
	Version     int       `json:"v"`
	Request     string    `json:"request"`     // id of the request that took it
	Fingerprint string    `json:"fingerprint"` // of the spec
	Time        time.Time `json:"time"`
}

// NameHold is the value of a sandbox's name: which sandbox has it.
type NameHold struct {
	Version int    `json:"v"`
	Sandbox string `json:"sandbox"`
	Request string `json:"request"`          // id of the create that took it
	Stored  uint64 `json:"stored"`           // stream sequence of that request: those stored before it mean Before
	Before  string `json:"before,omitempty"` // the sandbox that had the name before

	BeforeStored uint64 `json:"before_stored,omitempty"` // as Stored, of Before
}

// Validate checks a request of a verb: that it has what the verb needs, nothing that it does not
// use, and that its spec holds. The error names the field as the payload has it.
func (r *Request) Validate(verb string) error { return InPayload(verb, r.validate(verb)) }

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
	var sandbox, execID, exec, ttl bool
	switch verb {
	case VerbCreate:
		sandbox = true
	case VerbExec:
		execID, exec = true, true
	case VerbCancel:
		execID = true
	case VerbExtend:
		ttl = true
	case VerbStop, VerbResume, VerbDelete:
	default:
		return Invalid("verb", "must be create, exec, cancel, stop, resume, delete or extend, got %.40q", verb)
	}
	for _, err := range []error{
		uses("sandbox", r.Sandbox != nil, sandbox), uses("exec_id", r.ExecID != "", execID), uses("exec", r.Exec != nil, exec),
		uses("ttl", r.TTL != 0, ttl), uses("name", r.Name != "", sandbox && r.Name != ""),
	} {
		if err != nil {
			return err
		}
	}
	if r.TTL < 0 {
		return Invalid("ttl", "must be positive, got %s", r.TTL)
	}
	if execID {
		if err := ValidateID("exec_id", r.ExecID); err != nil {
			return err
		}
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

// Status is what a coordinator says to everybody, on [StatusSubject]: when it begins or ends to
// wait, and every [StatusPeriod] while it does. It is a core message, which may be lost.
type Status struct {
	Version     int       `json:"v"`
	Coordinator string    `json:"coordinator"`
	Waiting     *Error    `json:"waiting,omitempty"` // why no creates and execs are decided now; nil: they are
	Time        time.Time `json:"time"`
}

const (
	// StatusPeriod is how often a coordinator says that it waits.
	StatusPeriod = 2 * time.Second
	// StatusAge is how long a status holds that is not repeated.
	StatusAge = 5 * time.Second
)
