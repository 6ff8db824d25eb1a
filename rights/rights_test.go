package rights_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

const key = "UAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// of returns a valid identity that has the role.
func of(role rights.Role) rights.Identity {
	id := rights.Identity{Role: role, Name: "anna", Key: key}
	if role.HasTenant() {
		id.Tenant = "blue"
	}
	if role.HasHost() {
		id.Host = "H7XQ"
	}
	return id
}

func TestEachPartOfAnIdentityIsOneToken(t *testing.T) {
	hostile := []string{"", ".", "a.b", "*", ">", "a*", "a>", "@anna", "a b", "a\n", "{{name()}}", "{name}", "é",
		strings.Repeat("a", 65)}
	for _, role := range rights.Roles() {
		parts := map[string]func(id *rights.Identity, to string){
			"name": func(id *rights.Identity, to string) { id.Name = to },
		}
		if role.HasTenant() {
			parts["tenant"] = func(id *rights.Identity, to string) { id.Tenant = to }
		}
		if role.HasHost() {
			parts["host"] = func(id *rights.Identity, to string) { id.Host = to }
		}
		for field, set := range parts {
			for _, text := range hostile {
				id := of(role)
				set(&id, text)
				_, err := rights.Permissions(id)
				if protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != field {
					t.Errorf("%s with %s %q: got %v", role, field, text, err)
				}
			}
		}
	}
}

func TestAnIdentityHasThePartsOfItsRoleOnly(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(id *rights.Identity)
		role   rights.Role
	}{
		{"role", func(id *rights.Identity) { id.Role = "root" }, rights.User},
		{"role", func(id *rights.Identity) { id.Role = "" }, rights.User},
		{"tenant", func(id *rights.Identity) { id.Tenant = "blue" }, rights.Operator},
		{"tenant", func(id *rights.Identity) { id.Tenant = "" }, rights.Viewer},
		{"tenant", func(id *rights.Identity) { id.Tenant = "Blue" }, rights.User},
		{"name", func(id *rights.Identity) { id.Name = "Anna" }, rights.Worker},
		{"host", func(id *rights.Identity) { id.Host = "h" }, rights.Coordinator},
		{"host", func(id *rights.Identity) { id.Host = "" }, rights.Worker},
		{"key", func(id *rights.Identity) { id.Key = "*" }, rights.Worker},
		{"key", func(id *rights.Identity) { id.Key = strings.ToLower(key) }, rights.Worker},
	} {
		id := of(c.role)
		c.change(&id)
		if err := id.Validate(); err == nil || protocol.AsError(err).Field != c.field {
			t.Errorf("%+v: got %v, want an error of field %s", id, err, c.field)
		}
	}
}

func TestNoRoleHasAnEmptyListOrAnUnfilledPlace(t *testing.T) {
	for _, role := range rights.Roles() {
		for _, withKey := range []string{key, ""} {
			id := of(role)
			id.Key = withKey
			s, err := rights.Permissions(id)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Publish) == 0 || len(s.Subscribe) == 0 {
				t.Errorf("%s: an empty list permits everything", role)
			}
			for _, subject := range append(s.Publish, s.Subscribe...) {
				if strings.ContainsAny(subject, "{}") || strings.Contains(subject, "..") || strings.HasSuffix(subject, ".") {
					t.Errorf("%s: %s is not a subject", role, subject)
				}
			}
		}
	}
}

// TestATemplateFilledInIsWhatPermissionsSays fills in templates as a server does, and compares the result with
// Permissions.
func TestATemplateFilledInIsWhatPermissionsSays(t *testing.T) {
	for _, role := range rights.Roles() {
		id := of(role)
		fill := strings.NewReplacer("{{name()}}", id.Name, "{{subject()}}", id.Key, "{{tag(tenant)}}", id.Tenant,
			"{{tag(host)}}", id.Host)
		template, err := rights.Template(role)
		if err != nil {
			t.Fatal(err)
		}
		explicit, err := rights.Permissions(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, lists := range [][2][]string{
			{template.Publish, explicit.Publish}, {template.Subscribe, explicit.Subscribe},
		} {
			var filled []string
			for _, subject := range lists[0] {
				filled = append(filled, fill.Replace(subject))
			}
			slices.Sort(filled)
			if !slices.Equal(filled, lists[1]) {
				t.Errorf("%s: the template gives\n%q\nand the permissions are\n%q", role, filled, lists[1])
			}
		}
	}
}

func TestTenantsReachNothingButTheirOwnSubjects(t *testing.T) {
	own := regexp.MustCompile(
		`\Aboxfleet\.v1\.((request|api|blob|secret)|stream\.(open|up)\.\*)\.\{tenant\}\.\{name\}\.`)
	heard := []string{"boxfleet.v1.live.{tenant}.>", "boxfleet.v1.out.*.{tenant}.>", "boxfleet.v1.status",
		"_INBOX.{tenant}.{name}.>", "boxfleet.v1.stream.down.*.{tenant}.{name}.*.*"}
	for _, row := range rights.Table() {
		if !row.Role.HasTenant() {
			continue
		}
		for _, subject := range row.Subjects {
			if row.Verb == rights.Publish && !own.MatchString(subject) {
				t.Errorf("%s may publish to %s", row.Role, subject)
			}
			if row.Verb == rights.Subscribe && !slices.Contains(heard, subject) {
				t.Errorf("%s may subscribe to %s", row.Role, subject)
			}
		}
	}
}

func TestAWorkerMakesNoConsumerAndChangesNoStream(t *testing.T) {
	for _, row := range rights.Table() {
		for _, subject := range row.Subjects {
			if row.Role == rights.Worker && regexp.MustCompile(`CREATE|UPDATE|DELETE|PURGE|MSG\.NEXT`).MatchString(subject) {
				t.Errorf("a worker may publish to %s", subject)
			}
		}
	}
}

func TestEveryRowSaysWhyAndForWhom(t *testing.T) {
	for _, row := range rights.Table() {
		if row.Why == "" || len(row.Subjects) == 0 || !slices.Contains(rights.Roles(), row.Role) {
			t.Errorf("an incomplete row: %+v", row)
		}
		for _, subject := range row.Subjects {
			for place, has := range map[string]bool{"{tenant}": row.Role.HasTenant(), "{host}": row.Role.HasHost()} {
				if strings.Contains(subject, place) && !has {
					t.Errorf("%s: %s has %s, which the role lacks", row.Role, subject, place)
				}
			}
		}
	}
}

// TestTheTableNamesSubjectsAsTheCodeDoes compares subjects that the table writes out with the functions that make them.
func TestTheTableNamesSubjectsAsTheCodeDoes(t *testing.T) {
	worker, err := rights.Permissions(of(rights.Worker))
	if err != nil {
		t.Fatal(err)
	}
	coordinator, err := rights.Permissions(of(rights.Coordinator))
	if err != nil {
		t.Fatal(err)
	}
	for subject, list := range map[string][]string{
		protocol.AppendSubject("anna", "*", "*"):                            worker.Publish,
		protocol.HeartbeatSubject("anna"):                                   worker.Publish,
		"$KV." + protocol.BucketLocks + "." + jetstream.HostLock("H7XQ"):    worker.Publish,
		protocol.WorkSubject("anna", "*", "*"):                              worker.Subscribe,
		protocol.WorkSubject("*", "*", "*"):                                 coordinator.Publish,
		"$KV." + protocol.BucketElections + "." + jetstream.SchedulerLock:   coordinator.Publish,
		protocol.APISubject("*", "*"):                                       coordinator.Subscribe,
		"$KV." + protocol.BucketLocks + "." + jetstream.HostLock("*"):       coordinator.Publish,
		"$SRV.PING." + protocol.ServiceName:                                 coordinator.Subscribe,
		"$JS.API.STREAM.CREATE." + protocol.StreamEvents:                    coordinator.Publish,
		"$JS.API.STREAM.INFO.OBJ_" + protocol.BucketImageFiles:              coordinator.Publish,
		"$JS.API.CONSUMER.CREATE.BOXFLEET_EVENTS.*." + protocol.EventFilter: coordinator.Publish,
		protocol.WriterSubject(protocol.OwnerCoordinator, "anna", "", key):  coordinator.Publish,
		protocol.WriterSubject(protocol.OwnerWorker, "anna", "H7XQ", key):   worker.Publish,
		protocol.WritersSince:                                               coordinator.Publish,
		of(rights.Worker).Inbox() + ".>":                                    worker.Subscribe,
		protocol.OutputSubject("H7XQ", "*", "*", "*"):                       worker.Publish,
	} {
		if !slices.Contains(list, subject) {
			t.Errorf("no right for %s", subject)
		}
	}
}

func TestInboxesAreThoseThatCoordinatorsAnswer(t *testing.T) {
	for _, role := range rights.Roles() {
		user, want := "@anna", "_INBOX.@anna"
		if role.HasTenant() {
			user, want = "anna", "_INBOX.blue.anna"
		}
		if got := of(role).Inbox(); got != want || protocol.Inbox("blue", user) != want {
			t.Errorf("%s: got %s and %s, want %s", role, got, protocol.Inbox("blue", user), want)
		}
	}
}
