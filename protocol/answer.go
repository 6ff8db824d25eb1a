package protocol

// Names of the fields of a [Reply] that [EncodeAnswer] can include in JSON even if they are false or empty.
const (
	AnswersRequest = "changed"
	ListsSandboxes = "sandboxes"
	ListsExecs     = "execs"
	ListsHosts     = "hosts"
	ListsAwaited   = "awaited"
	ListsTenants   = "tenants"
)

// listOf names the list that each endpoint answers with.
var listOf = map[string]string{
	EndpointList: ListsSandboxes, EndpointExecs: ListsExecs,
	EndpointHosts: ListsHosts, EndpointAwaited: ListsAwaited, EndpointTenants: ListsTenants,
}

// EncodeRead encodes the answer of an endpoint of the read service. In JSON, the endpoint's list is present
// even if it is empty.
func EncodeRead(contentType string, r *Reply, endpoint string) []byte {
	return EncodeAnswer(contentType, r, listOf[endpoint])
}

// answer is the JSON form of a reply. The fields below shadow the fields of the same name in Reply; JSON contains each
// of them if its pointer is set, even if the value is empty.
type answer struct {
	*Reply
	Changed   *bool       `json:"changed,omitempty"`
	Sandboxes *[]*Sandbox `json:"sandboxes,omitempty"`
	Execs     *[]*Exec    `json:"execs,omitempty"`
	Hosts     *[]*Host    `json:"hosts,omitempty"`
	Awaited   *[]string   `json:"awaited,omitempty"`
	Tenants   *[]*Tenant  `json:"tenants,omitempty"`
}

// EncodeAnswer encodes a reply in the given content type. The parameter always names a field: it is one of the
// constants above, or "" for no field. JSON contains the named field even if the field is empty, except in a reply that
// only reports waiting. An empty list is also left out of a reply with an error.
func EncodeAnswer(contentType string, r *Reply, always string) []byte {
	if ContentTypeOf(contentType, nil) != ContentJSON {
		return Encode(r)
	}
	if r.Waiting != nil || r.Error != nil && always != AnswersRequest {
		always = ""
	}
	a := &answer{
		Reply:     r,
		Sandboxes: list(r.Sandboxes, always == ListsSandboxes),
		Execs:     list(r.Execs, always == ListsExecs),
		Hosts:     list(r.Hosts, always == ListsHosts),
		Awaited:   list(r.Awaited, always == ListsAwaited),
		Tenants:   list(r.Tenants, always == ListsTenants),
	}
	if r.Changed || always == AnswersRequest {
		a.Changed = &r.Changed
	}
	return EncodeAs(contentType, a)
}

// list returns a pointer to a copy of rows, or nil to omit an empty list.
func list[T any](rows []T, always bool) *[]T {
	if len(rows) == 0 && !always {
		return nil
	}
	rows = append([]T{}, rows...) // not nil, which JSON encodes as null
	return &rows
}
