package protocol

// Fields of a [Reply] that an answer in JSON always has, though they say nothing: false, or an empty list.
const (
	AnswersRequest = "changed"
	ListsSandboxes = "sandboxes"
	ListsExecs     = "execs"
	ListsHosts     = "hosts"
	ListsAwaited   = "awaited"
)

// listOf is the list that an endpoint answers.
var listOf = map[string]string{EndpointList: ListsSandboxes, EndpointExecs: ListsExecs, EndpointHosts: ListsHosts, EndpointAwaited: ListsAwaited}

// EncodeRead writes the answer of an endpoint of the read service.
func EncodeRead(contentType string, r *Reply, endpoint string) []byte {
	return EncodeAnswer(contentType, r, listOf[endpoint])
}

// answer is a reply in JSON that has some fields though they are empty. Its fields stand before those of the
// reply that have the same name.
type answer struct {
	*Reply
	Changed   *bool       `json:"changed,omitempty"`
	Sandboxes *[]*Sandbox `json:"sandboxes,omitempty"`
	Execs     *[]*Exec    `json:"execs,omitempty"`
	Hosts     *[]*Host    `json:"hosts,omitempty"`
	Awaited   *[]string   `json:"awaited,omitempty"`
}

// EncodeAnswer writes a reply in the given content type, in JSON with a field that it has even where it is empty: one
// of the constants above. An answer that is none yet, or that is an error in place of a list, has it not.
func EncodeAnswer(contentType string, r *Reply, always string) []byte {
	if ContentTypeOf(contentType, nil) != ContentJSON {
		return Encode(r)
	}
	if r.Waiting != nil || r.Error != nil && always != AnswersRequest {
		always = ""
	}
	a := &answer{Reply: r, Sandboxes: list(r.Sandboxes, always == ListsSandboxes), Execs: list(r.Execs, always == ListsExecs),
		Hosts: list(r.Hosts, always == ListsHosts), Awaited: list(r.Awaited, always == ListsAwaited)}
	if r.Changed || always == AnswersRequest {
		a.Changed = &r.Changed
	}
	return EncodeAs(contentType, a)
}

// list is nil for an empty list that need not be there.
func list[T any](rows []T, always bool) *[]T {
	if len(rows) == 0 && !always {
		return nil
	}
	rows = append([]T{}, rows...) // not nil, which JSON says as null
	return &rows
}
