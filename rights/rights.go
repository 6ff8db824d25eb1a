package rights

import (
	"regexp"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Role is what a connection is for. Its text is part of credentials, configuration and commands.
type Role string

// The roles. A user and a viewer belong to one tenant; the others to none.
const (
	Coordinator Role = "coordinator"  // decides requests and answers reads
	Worker      Role = "worker"       // runs the sandboxes of one host
	User        Role = "user"         // sends requests and reads, in one tenant
	Viewer      Role = "viewer"       // reads, in one tenant
	FleetViewer Role = "fleet-viewer" // reads of all tenants and the state of all hosts, as a dashboard does
	Operator    Role = "operator"     // controls hosts, images and storage, and acts for every tenant
)

// Roles returns all roles in the order of the documentation.
func Roles() []Role { return []Role{Coordinator, Worker, User, Viewer, FleetViewer, Operator} }

// HasTenant reports whether the role belongs to one tenant.
func (r Role) HasTenant() bool { return r == User || r == Viewer }

// HasHost reports whether the role belongs to one Docker host.
func (r Role) HasHost() bool { return r == Worker }

// Identity names one holder of a role.
type Identity struct {
	Role   Role
	Name   string // name of the coordinator, worker or person: 1 to 64 characters of a-z 0-9 _ -
	Tenant string // tenant of a user or viewer, in the form of Name; otherwise empty
	Host   string // id of a worker's Docker host: 1 to 64 characters of A-Z a-z 0-9 _ -; otherwise empty

	// Key is the public key that the holder proves to the server. Without it, an identity has no right whose subject
	// names the key: it cannot register as a writer.
	Key string
}

// Names are lower case only: a server compares subjects byte by byte, but people confuse names that differ in case. The
// ids of hosts may use both cases, because they are generated and nobody types them.
var (
	namePattern = regexp.MustCompile(`\A[a-z0-9_-]{1,64}\z`)
	keyPattern  = regexp.MustCompile(`\AU[A-Z2-7]{55}\z`)
)

// Validate checks that every part of the identity is one token of a subject, without wildcards, and that the identity
// has exactly the parts that its role needs. A server checks none of this when it fills in a template. Error:
// invalid_argument with field role, name, tenant, host or key.
func (id Identity) Validate() error {
	if !slices.Contains(Roles(), id.Role) {
		return protocol.Invalid("role", "must be one of %s, got %.80q", names(Roles()), id.Role)
	}
	if err := validateName("name", id.Name); err != nil {
		return err
	}
	if !id.Role.HasTenant() && id.Tenant != "" {
		return protocol.Invalid("tenant", "must be empty: the role %s belongs to no tenant", id.Role)
	}
	if id.Role.HasTenant() {
		if err := validateName("tenant", id.Tenant); err != nil {
			return err
		}
	}
	if !id.Role.HasHost() && id.Host != "" {
		return protocol.Invalid("host", "must be empty: the role %s belongs to no host", id.Role)
	}
	if id.Role.HasHost() {
		if err := protocol.ValidateID("host", id.Host); err != nil {
			return err
		}
	}
	if id.Key != "" && !keyPattern.MatchString(id.Key) {
		return protocol.Invalid("key", "must be a public user key of NATS, U and 55 characters, got %.80q", id.Key)
	}
	return nil
}

func validateName(field, name string) error {
	if name == "" {
		return protocol.Invalid(field, "must not be empty")
	}
	if !namePattern.MatchString(name) {
		return protocol.Invalid(field, "must be 1 to %d characters of a-z 0-9 _ -, got %.80q", protocol.MaxIDLength, name)
	}
	return nil
}

func names(roles []Role) string {
	all := make([]string, len(roles))
	for i, r := range roles {
		all[i] = string(r)
	}
	return strings.Join(all, ", ")
}

// Inbox returns the prefix of the inboxes on which this identity receives answers, without a dot at its end. Configure
// each client with this prefix, because no identity may subscribe to the inboxes of others. The identity must be valid.
func (id Identity) Inbox() string {
	return id.fill(strings.TrimSuffix(inboxOf(id.Role), ".>"))
}

// Verb is what a right permits.
type Verb string

// The verbs.
const (
	Publish   Verb = "publish"
	Subscribe Verb = "subscribe"
)

// Row is a right of a role. Its subjects may contain the placeholders {name}, {tenant}, {host} and {key}, which stand
// for the parts of an [Identity], and the wildcards * and >.
type Row struct {
	Role     Role
	Verb     Verb
	Subjects []string
	Why      string // why the role needs the right, in one sentence
}

// Set is a list of permissions: the subjects to publish to and to subscribe to. Everything else is forbidden. Neither
// list is ever empty, because a NATS server takes an empty list as a permission for every subject.
type Set struct {
	Publish, Subscribe []string
}

// Permissions returns the subjects that an identity may use. Errors are those of [Identity.Validate].
func Permissions(id Identity) (Set, error) {
	if err := id.Validate(); err != nil {
		return Set{}, err
	}
	return collect(id.Role, func(subject string) (string, bool) {
		return id.fill(subject), id.Key != "" || !strings.Contains(subject, "{key}")
	}), nil
}

// Template returns the subjects of a role as a template of a NATS signing key. The server fills in each user's name,
// public key, and the values of its tags tenant:TENANT and host:HOST. It does not refuse dots and wildcards in these
// texts, so call [Identity.Validate] before signing. Error: invalid_argument with field role.
func Template(role Role) (Set, error) {
	if !slices.Contains(Roles(), role) {
		return Set{}, protocol.Invalid("role", "must be one of %s, got %.80q", names(Roles()), role)
	}
	fill := strings.NewReplacer(
		"{name}", "{{name()}}", "{tenant}", "{{tag(tenant)}}", "{host}", "{{tag(host)}}", "{key}", "{{subject()}}",
	)
	return collect(role, func(subject string) (string, bool) { return fill.Replace(subject), true }), nil
}

func (id Identity) fill(subject string) string {
	return strings.NewReplacer("{name}", id.Name, "{tenant}", id.Tenant, "{host}", id.Host, "{key}", id.Key).
		Replace(subject)
}

// collect returns the filled-in subjects of a role, sorted and each once.
func collect(role Role, fill func(subject string) (filled string, has bool)) (s Set) {
	for _, row := range Table() {
		if row.Role != role {
			continue
		}
		for _, subject := range row.Subjects {
			filled, has := fill(subject)
			switch {
			case !has:
			case row.Verb == Publish:
				s.Publish = append(s.Publish, filled)
			default:
				s.Subscribe = append(s.Subscribe, filled)
			}
		}
	}
	for _, list := range []*[]string{&s.Publish, &s.Subscribe} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return s
}
