package auth_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// testServer is a NATS server that runs with a configuration file, as the servers of an operator do.
type testServer struct {
	*server.Server
	file string
	dir  string
}

// startServer runs a server whose configuration includes part.
func startServer(t *testing.T, part string) *testServer {
	t.Helper()
	dir := t.TempDir()
	s := &testServer{dir: dir, file: filepath.Join(dir, "nats.conf")}
	s.write(t, part)
	opts, err := server.ProcessConfigFile(s.file)
	if err != nil {
		t.Fatalf("the server does not accept the configuration: %v", err)
	}
	opts.NoLog, opts.NoSigs = true, true
	if s.Server, err = server.NewServer(opts); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	return s
}

func (s *testServer) write(t *testing.T, part string) {
	t.Helper()
	included := filepath.Join(s.dir, "auth.conf")
	text := fmt.Sprintf("server_name: test\nlisten: \"127.0.0.1:-1\"\njetstream { store_dir: %q }\n"+
		"include \"auth.conf\"\n", filepath.Join(s.dir, "store"))
	for name, content := range map[string]string{included: part, s.file: text} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// reload puts another part into the configuration of the running server.
func (s *testServer) reload(t *testing.T, part string) {
	t.Helper()
	s.write(t, part)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
}

// newAuthority makes an authority and a server that trusts it and stores accounts.
func newAuthority(t *testing.T) (*auth.Authority, *testServer) {
	t.Helper()
	a, err := auth.Init(filepath.Join(t.TempDir(), "authority"), false)
	if err != nil {
		t.Fatal(err)
	}
	part, err := trust(t, a).Config(filepath.Join(t.TempDir(), "accounts"))
	if err != nil {
		t.Fatal(err)
	}
	return a, startServer(t, part)
}

func trust(t *testing.T, a *auth.Authority) *auth.Trust {
	t.Helper()
	found, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func issue(t *testing.T, a *auth.Authority, id rights.Identity) *auth.Credentials {
	t.Helper()
	c, err := a.Issue(id, auth.IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// client is a connection that records the refusals of the server.
type client struct {
	*nats.Conn

	mu      sync.Mutex
	refused []string
	news    chan struct{}
	marks   int
}

// connect connects as one holder of credentials. It tries once.
func connect(s *testServer, login nats.Option) (*client, error) {
	c := &client{news: make(chan struct{}, 1)}
	var err error
	c.Conn, err = nats.Connect(s.ClientURL(), login, nats.NoReconnect(), nats.MaxPingsOutstanding(100),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if !errors.Is(err, nats.ErrPermissionViolation) {
				return
			}
			c.mu.Lock()
			c.refused = append(c.refused, err.Error())
			c.mu.Unlock()
			select {
			case c.news <- struct{}{}:
			default:
			}
		}))
	return c, err
}

// dial is connect for credentials that the server accepts.
func dial(t *testing.T, s *testServer, credentials *auth.Credentials) *client {
	t.Helper()
	c, err := connect(s, nats.UserCredentialBytes(credentials.Text))
	if err != nil {
		t.Fatalf("%s %s: %v", credentials.Role, credentials.Name, err)
	}
	t.Cleanup(c.Close)
	return c
}

// refusals waits until the server has answered everything sent before, and returns its refusals since the last call.
func (c *client) refusals(t *testing.T) []string {
	t.Helper()
	c.marks++
	mark := fmt.Sprintf("no.role.may.publish.this.%d", c.marks) // errors arrive in order, so this one is the last
	if err := c.Publish(mark, nil); err != nil {
		t.Fatal(err)
	}
	limit := time.After(20 * time.Second)
	for {
		c.mu.Lock()
		at := slices.IndexFunc(c.refused, func(r string) bool { return strings.Contains(r, mark) })
		if at >= 0 {
			since := slices.Clone(c.refused[:at])
			c.refused = c.refused[at+1:]
			c.mu.Unlock()
			return since
		}
		c.mu.Unlock()
		select {
		case <-c.news:
		case <-limit:
			t.Fatal("the server did not answer")
		}
	}
}

func (c *client) mayPublish(t *testing.T, subject string) bool {
	t.Helper()
	if err := c.Publish(subject, nil); err != nil {
		t.Fatal(err)
	}
	return len(c.refusals(t)) == 0
}

func (c *client) maySubscribe(t *testing.T, subject string) bool {
	t.Helper()
	sub, err := c.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	refused := c.refusals(t)
	_ = sub.Unsubscribe() // fails if the server refused the subscription
	return len(refused) == 0
}

// someone returns an identity of a role. It leaves out the tenant or the host if the role has none.
func someone(role rights.Role, name, tenant, host string) rights.Identity {
	id := rights.Identity{Role: role, Name: name}
	if role.HasTenant() {
		id.Tenant = tenant
	}
	if role.HasHost() {
		id.Host = host
	}
	return id
}

// covers reports whether a permission includes a subject, which may have wildcards itself.
func covers(permission, subject string) bool {
	want, have := strings.Split(permission, "."), strings.Split(subject, ".")
	for i, w := range want {
		switch {
		case w == ">":
			return len(have) > i
		case i >= len(have) || have[i] == ">":
			return false
		case w != "*" && w != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// TestARoleReachesItsOwnSubjectsAndNoOthers makes holders that differ in role, name, tenant or host. As each holder, it
// tries the subjects of all holders. The server fills in the templates.
func TestARoleReachesItsOwnSubjectsAndNoOthers(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	var holders []*auth.Credentials
	subjects := []string{
		">", "*", "*.>", "_INBOX.>", "_INBOX.*", "_INBOX.*.>", "_INBOX.x", "boxfleet.>", "boxfleet.v1.>", "$JS.>", "$KV.>",
		"$O.>", "$SYS.>", "$SRV.>", "$JS.API.>", "boxfleet.v1.live.>", "boxfleet.v1.log.>", "boxfleet.v1.live.*.x",
		"boxfleet.v1.api.*.*.*", "boxfleet.v1.event.blue.x", "boxfleet.v1.append.>", "boxfleet.v1.request.blue.create.x",
		"boxfleet.v1.api.blue.get", "boxfleet.v1.request.blue.@oper-a.create.x", "boxfleet.v1.log.blue.x.y",
		"$JS.API.STREAM.DELETE.BOXFLEET_EVENTS", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST",
		"$JS.API.STREAM.PURGE.KV_boxfleet_ids", "$JS.API.CONSUMER.CREATE.BOXFLEET_EVENTS",
		"$JS.API.CONSUMER.DURABLE.CREATE.BOXFLEET_EVENTS.x", "$JS.API.META.LEADER.STEPDOWN", "$SYS.REQ.CLAIMS.UPDATE",
		"$SYS.REQ.SERVER.PING", "$KV.boxfleet_locks.host.>", "$JS.ACK.BOXFLEET_REQUESTS.other.x",
	}
	for i, role := range rights.Roles() {
		one := someone(role, fmt.Sprintf("r%d-a", i), "blue", "HOSTA")
		others := []rights.Identity{one, someone(role, fmt.Sprintf("r%d-b", i), "blue", "HOSTB")}
		if role.HasTenant() {
			others = append(others, someone(role, fmt.Sprintf("r%d-a", i), "green", ""))
		}
		for _, id := range others {
			c := issue(t, a, id)
			holders = append(holders, c)
			set, err := rights.Permissions(c.Identity())
			if err != nil {
				t.Fatal(err)
			}
			subjects = append(subjects, slices.Concat(set.Publish, set.Subscribe)...)
		}
	}
	slices.Sort(subjects)
	subjects = slices.Compact(subjects)
	for _, holder := range holders {
		set, err := rights.Permissions(holder.Identity())
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, s, holder)
		c.try(t, holder, "Subscription", subjects, set.Subscribe, func(subject string) error {
			_, err := c.ChanSubscribe(subject, make(chan *nats.Msg, 1024))
			return err
		})
		var literal []string
		for _, subject := range subjects {
			literal = append(literal, strings.NewReplacer("*", "w1ld", ">", "w1ld.w1ld").Replace(subject))
		}
		c.try(t, holder, "Publish", literal, set.Publish, func(subject string) error { return c.Publish(subject, nil) })
	}
}

// try calls do with each subject, as a holder. The server must refuse exactly the subjects that the permissions do not
// cover.
func (c *client) try(t *testing.T, holder *auth.Credentials, verb string, subjects, allowed []string,
	do func(subject string) error) {
	t.Helper()
	for _, subject := range subjects {
		if err := do(subject); err != nil {
			t.Fatal(err)
		}
	}
	refused := map[string]bool{}
	for _, text := range c.refusals(t) {
		for _, subject := range subjects {
			if strings.Contains(text, verb+" to \""+subject+"\"") {
				refused[subject] = true
			}
		}
	}
	reached := 0
	for _, subject := range subjects {
		want := slices.ContainsFunc(allowed, func(p string) bool { return covers(p, subject) })
		if want == refused[subject] {
			t.Errorf("%s %s %s: %s to %s: refused is %v", holder.Role, holder.Tenant, holder.Name, verb, subject, !want)
		}
		if want {
			reached++
		}
	}
	if reached == 0 || len(refused) == 0 {
		t.Errorf("%s: %d subjects reached, %d refused", holder.Role, reached, len(refused))
	}
}

func TestNoCredentialsAreMadeForNamesThatAreMoreThanOneToken(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, hostile := range []string{"", "*", ">", "a.b", "a.>", "@a", "A", "a b", strings.Repeat("a", 65)} {
		for field, id := range map[string]rights.Identity{
			"name":   someone(rights.Worker, hostile, "", "h"),
			"tenant": {Role: rights.User, Name: "anna", Tenant: hostile},
			"host":   {Role: rights.Worker, Name: "w", Host: strings.Replace(hostile, "A", "é", 1)},
		} {
			_, err := a.Issue(id, auth.IssueOptions{})
			if e := protocol.AsError(err); e == nil || e.Code != protocol.InvalidArgument || e.Field != field {
				t.Errorf("%s %q: got %v", field, hostile, err)
			}
		}
	}
	if all, err := a.List(); err != nil || len(all) != 0 {
		t.Errorf("credentials were made: %v, %v", all, err)
	}
}

func TestAServerTakesTheConfigurationOfEachForm(t *testing.T) {
	t.Parallel()
	a, full := newAuthority(t)
	memory := startServer(t, trust(t, a).MemoryConfig())
	for _, role := range rights.Roles() {
		c := issue(t, a, someone(role, string(role), "blue", "h"))
		for _, s := range []*testServer{full, memory} {
			dial(t, s, c)
		}
	}
	for _, s := range []*testServer{full, memory} {
		if _, err := connect(s, nats.Token("guess")); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("without credentials: got %v", err)
		}
	}
	coordinator := dial(t, full, issue(t, a, someone(rights.Coordinator, "c2", "", "")))
	// If the coordinator can make a stream, the account has JetStream.
	answer := ask(t, coordinator, "_INBOX.@c2", "$JS.API.STREAM.CREATE.BOXFLEET_DEAD",
		`{"name":"BOXFLEET_DEAD","subjects":["boxfleet.v1.dead.*.*.*"],"num_replicas":1,"storage":"file"}`)
	if !strings.Contains(answer, `"created"`) {
		t.Errorf("a stream was not made: %s", answer)
	}
}

// ask sends a request and returns the answer. The inbox for the answer begins with prefix.
func ask(t *testing.T, c *client, prefix, subject, data string) string {
	t.Helper()
	inbox := prefix + ".answer"
	sub, err := c.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PublishRequest(subject, inbox, []byte(data)); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(10 * time.Second)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	return string(m.Data)
}

func TestStaticUsersHaveTheRightsOfTheirRoles(t *testing.T) {
	t.Parallel()
	hash, err := auth.HashPassword("correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	worker := someone(rights.Worker, "w1", "", "HOSTA")
	worker.Key = public
	part, err := auth.StaticConfig([]auth.StaticUser{
		{Identity: worker}, {Identity: someone(rights.User, "anna", "blue", ""), Password: hash},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, part)
	w, err := connect(s, nats.Nkey(public, pair.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	u, err := connect(s, nats.UserInfo("user.blue.anna", "correct horse battery"))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for subject, want := range map[string][2]bool{
		"boxfleet.v1.append.w1.blue.x": {true, false},
		"boxfleet.v1.append.w2.blue.x": {false, false},

		protocol.WriterSubject(protocol.OwnerWorker, "w1", "HOSTA", public): {true, false},
		protocol.WriterSubject(protocol.OwnerWorker, "w1", "HOSTB", public): {false, false},
		protocol.WriterSubject(protocol.OwnerWorker, "w2", "HOSTA", public): {false, false},
		protocol.WriterSubject(protocol.OwnerCoordinator, "w1", "", public): {false, false},

		"boxfleet.v1.request.blue.anna.create.x":  {false, true},
		"boxfleet.v1.request.green.anna.create.x": {false, false},
		"boxfleet.v1.request.blue.anna.assign.x":  {false, false},
		"$KV.boxfleet_locks.host.HOSTA":           {true, false},
		"$KV.boxfleet_locks.host.HOSTB":           {false, false},
		"$JS.API.STREAM.MSG.GET.BOXFLEET_EVENTS":  {true, false},
		"$JS.API.STREAM.PURGE.BOXFLEET_EVENTS":    {false, false},
	} {
		if got := [2]bool{w.mayPublish(t, subject), u.mayPublish(t, subject)}; got != want {
			t.Errorf("%s: worker and user may publish is %v, want %v", subject, got, want)
		}
	}
	if !u.maySubscribe(t, "boxfleet.v1.live.blue.>") || u.maySubscribe(t, "boxfleet.v1.live.>") {
		t.Error("a user must receive the live events of its tenant, and of no other tenant")
	}
	for _, login := range []nats.Option{nats.UserInfo("user.blue.anna", "wrong"), nats.Token("guess")} {
		if _, err := connect(s, login); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("got %v, want a refusal", err)
		}
	}
	if _, err := nats.Connect(s.ClientURL(), nats.NoReconnect()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a login: got %v", err)
	}
}

func TestStaticUsersAreRefusedWithTheField(t *testing.T) {
	t.Parallel()
	anna := someone(rights.User, "anna", "blue", "")
	key := anna
	key.Key = "U" + strings.Repeat("A", 55)
	hash, err := auth.HashPassword("correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	for field, users := range map[string][]auth.StaticUser{
		"users":    {},
		"password": {{Identity: anna, Password: "plain text"}},
		"tenant":   {{Identity: rights.Identity{Role: rights.User, Name: "anna", Tenant: ">"}, Password: hash}},
	} {
		if _, err := auth.StaticConfig(users); protocol.AsError(err).Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for _, users := range [][]auth.StaticUser{
		{{Identity: anna, Password: hash}, {Identity: anna, Password: hash}}, {{Identity: key}, {Identity: key}},
		{{Identity: anna, Password: hash},
			{Identity: rights.Identity{Role: rights.Viewer, Name: anna.Name, Tenant: anna.Tenant}, Password: hash}},
		{{Identity: rights.Identity{Role: rights.Coordinator, Name: "c1"}, Password: hash},
			{Identity: rights.Identity{Role: rights.Operator, Name: "c1"}, Password: hash}},
	} {
		if _, err := auth.StaticConfig(users); protocol.AsError(err).Field != "users" {
			t.Errorf("%v have one inbox: got %v", users, err)
		}
	}
	if _, err := auth.StaticConfig([]auth.StaticUser{{Identity: key, Password: hash}}); protocol.AsError(err).Field !=
		"password" {
		t.Errorf("key and password: got %v", err)
	}
}

// waitRefused waits until the server refuses credentials.
func waitRefused(t *testing.T, s *testServer, c *auth.Credentials) {
	t.Helper()
	eventually.Holds(t, 20*time.Second, "the server refuses the credentials", func() bool {
		nc, err := connect(s, nats.UserCredentialBytes(c.Text))
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked)
	})
}

// A server remembers each message of a client until the answer comes, by default for up to two minutes. A flood of
// messages that nobody answers would fill its memory, so the accounts set a shorter time.
func TestAServerForgetsUnansweredMessagesSoon(t *testing.T) {
	t.Parallel()
	a, signed := newAuthority(t)
	part, err := auth.StaticConfig([]auth.StaticUser{
		{Identity: rights.Identity{Role: rights.Coordinator, Name: "c1", Key: keyOfUser(t)}},
		{Identity: rights.Identity{Role: rights.User, Name: "anna", Tenant: "blue", Key: keyOfUser(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*testServer{trust(t, a).Streams: signed, "boxfleet": startServer(t, part)} {
		account, err := s.LookupAccount(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range []string{"boxfleet.v1.api.>", "boxfleet.v1.request.>", "boxfleet.v1.blob.>"} {
			if kept, err := account.ServiceExportResponseThreshold(subject); err != nil || kept > time.Minute {
				t.Errorf("%s: a server remembers a message for %s, %v", subject, kept, err)
			}
		}
	}
}

func keyOfUser(t *testing.T) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
