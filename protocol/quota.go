package protocol

// Quota limits what a tenant may use. 0 means no limit. [TenantUse] says what each limit counts.
type Quota struct {
	Sandboxes int     `json:"sandboxes,omitempty"`
	Execs     int     `json:"execs,omitempty"`
	Waiting   int     `json:"waiting,omitempty"`
	CPU       float64 `json:"cpu,omitempty"` // cores
	Memory    Bytes   `json:"memory,omitempty"`
	Disk      Bytes   `json:"disk,omitempty"`
	Output    Bytes   `json:"output,omitempty"`
	Uploads   Bytes   `json:"uploads,omitempty"`
}

// TenantUse says how much a tenant uses now.
type TenantUse struct {
	Sandboxes int     `json:"sandboxes"` // sandboxes with a host, including stopped ones, until they fail or are deleted
	Execs     int     `json:"execs"`     // accepted execs that have not ended
	Waiting   int     `json:"waiting"`   // sandboxes that wait for a host
	CPU       float64 `json:"cpu"`       // cores that sandboxes reserve on hosts
	Memory    Bytes   `json:"memory"`    // memory that sandboxes reserve on hosts
	Disk      Bytes   `json:"disk"`      // disk that sandboxes reserve on hosts

	// Sizes of stored output and uploads. nil: unknown, because no coordinator leads now, or the leader has not
	// measured the size yet.
	Output  *Bytes `json:"output,omitempty"`
	Uploads *Bytes `json:"uploads,omitempty"`
}

// Tenant is the answer of the endpoint "tenant": what a tenant may use, what it uses, and what waits because of a
// quota.
type Tenant struct {
	Tenant string    `json:"tenant"`
	Quota  Quota     `json:"quota"`
	Used   TenantUse `json:"used"`
	// Held has the oldest sandboxes that wait because of the quota, at most [MaxHeld].
	Held []HeldSandbox `json:"held,omitempty"`
}

// MaxHeld is how many sandboxes [Tenant.Held] has at most.
const MaxHeld = 20

// HeldSandbox is a sandbox that waits because its tenant's quota has no room for it.
type HeldSandbox struct {
	Sandbox string `json:"sandbox"`
	Name    string `json:"name,omitempty"`
	Why     *Error `json:"why"` // says which limit leaves no room
}

// LeaderQuery is a query of a coordinator to the leading coordinator on [LeaderSubject]. Exactly one of the fields
// after Version is set, except that Limit and Page may accompany Tenants.
type LeaderQuery struct {
	Version int         `json:"v"`
	Claim   *QuotaClaim `json:"claim,omitempty"`   // take room in a tenant's quota
	Release *QuotaClaim `json:"release,omitempty"` // give back room that was claimed but not used
	Quotas  bool        `json:"quotas,omitempty"`  // true: ask for all quotas
	Tenant  string      `json:"tenant,omitempty"`  // ask for the quota and use of this tenant
	Tenants bool        `json:"tenants,omitempty"` // true: ask for the quotas and use of all tenants, page by page

	// With Tenants, Limit and Page mean the same as in [Query]. A leader of an earlier version ignores both.
	Limit int    `json:"limit,omitempty"`
	Page  string `json:"page,omitempty"`
}

// QuotaClaim is room in a tenant's quota that one request needs.
type QuotaClaim struct {
	Tenant  string `json:"tenant"`
	Sandbox string `json:"sandbox,omitempty"`
	Exec    string `json:"exec,omitempty"`   // id of the exec that needs the room; empty: the create of Sandbox needs it
	Upload  string `json:"upload,omitempty"` // digest of the upload that needs the room
	Bytes   Bytes  `json:"bytes,omitempty"`  // size of that upload so far

	// UploadID is the id of the upload. Each upload has its own claim. Empty: the coordinator has an earlier version.
	UploadID string `json:"upload_id,omitempty"`
}

// LeaderReply is the answer to a [LeaderQuery].
type LeaderReply struct {
	Version int              `json:"v"`
	Error   *Error           `json:"error,omitempty"`
	Lasts   Duration         `json:"lasts,omitempty"`  // how long after the query a claim may be used
	Quotas  map[string]Quota `json:"quotas,omitempty"` // by tenant; "*": the quota of all tenants without an entry
	Tenants []*Tenant        `json:"tenants,omitempty"`
	Next    string           `json:"next,omitempty"` // page token of the next page of Tenants; empty: no next page
}
