package auth_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

func TestMain(m *testing.M) {
	eventually.InMemory()
	// Many tests wait for the end of credentials or for a coordinator. On small machines they therefore finish sooner with
	// more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	m.Run()
}

// right is one subject of the table of rights, with its placeholders.
type right struct {
	verb    rights.Verb
	subject string
}

// rightsOf returns the rights of a role, each once.
func rightsOf(role rights.Role) (all []right) {
	for _, row := range rights.Table() {
		for _, subject := range row.Subjects {
			if r := (right{row.Verb, subject}); row.Role == role && !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

// These are rights that a role needs only in rare situations. Each of them has a test of its own.
var (
	asksForJetStream = right{rights.Publish, "$JS.API.INFO"}
	movesTheLog      = right{rights.Publish, "$JS.API.STREAM.LEADER.STEPDOWN.BOXFLEET_EVENTS"}

	inRareSituations = map[rights.Role][]right{
		rights.Worker: {asksForJetStream},
	}
)

// withoutTrial has the rights that only a cluster or a backup of several messages needs.
var withoutTrial = map[rights.Role][]right{
	rights.Coordinator: {movesTheLog},
	rights.Operator: {
		{rights.Publish, "$JS.API.STREAM.CREATE.BOXFLEET_LOGS_MOVING"},
		{rights.Publish, "$JS.API.STREAM.UPDATE.BOXFLEET_LOGS_MOVING"},
		{rights.Publish, "$JS.API.STREAM.DELETE.BOXFLEET_LOGS_MOVING"},
		{rights.Publish, "$JS.API.STREAM.DELETE.BOXFLEET_LOGS"}, {rights.Publish, "$JS.API.STREAM.PURGE.BOXFLEET_LOGS"},
		{rights.Publish, "boxfleet.v1.parked.log"}, {rights.Publish, "$JS.SNAPSHOT.ACK.>"},
	},
}

// withoutKey has the rights that only a connection with a key needs, because only such a connection signs the events
// that it appends. The connections of trials have no key.
var withoutKey = map[rights.Role][]right{
	rights.Coordinator: {
		{rights.Publish, protocol.WriterSubject(protocol.OwnerCoordinator, "{name}", "", "{key}")},
		{rights.Publish, protocol.WritersSince},
	},
	rights.Worker: {
		{rights.Publish, protocol.WriterSubject(protocol.OwnerWorker, "{name}", "{host}", "{key}")},
		{rights.Publish, protocol.UnsealSubject("{name}", "{host}", "{key}")},
	},
}

// usual returns the rights that a role needs in usual situations.
func usual(role rights.Role) []right {
	return slices.DeleteFunc(rightsOf(role), func(r right) bool {
		return slices.Contains(inRareSituations[role], r) || slices.Contains(withoutTrial[role], r) ||
			slices.Contains(withoutKey[role], r)
	})
}

// of returns the subject of the right, with the parts of an identity in place of the placeholders.
func (r right) of(id rights.Identity) string {
	return strings.NewReplacer("{name}", id.Name, "{tenant}", id.Tenant, "{host}", id.Host, "{key}", id.Key).
		Replace(r.subject)
}

// member is an identity with a key, and the right that it lacks.
type member struct {
	rights.Identity
	pair  nkeys.KeyPair
	lacks right // the zero value: the member lacks no right
}

func newMember(t *testing.T, id rights.Identity, lacks right) *member {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	if id.Key, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return &member{id, pair, lacks}
}

// trials has a server, members that each lack one right, and one connection without any limits.
type trials struct {
	server *testServer
	root   *member
}

// unused replaces a right that was taken away: a list must not become empty, because an empty list permits everything.
const unused = "nobody.uses.this"

// startTrials runs a server whose configuration lists the members, each without the right that it lacks. The user root,
// in the account of the streams, may do everything, because the configuration lists no permissions for root.
func startTrials(t *testing.T, members ...*member) *trials {
	t.Helper()
	users := make([]auth.StaticUser, len(members))
	for i, m := range members {
		users[i] = auth.StaticUser{Identity: m.Identity}
	}
	text, err := auth.StaticConfig(users)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.lacks != (right{}) {
			text = m.deprived(t, text)
		}
	}
	s := &trials{root: newMember(t, rights.Identity{Name: "root"}, right{})}
	const list = "users: [\n" // the first account is the account of the streams
	text = strings.Replace(text, list, list+"      { nkey: "+s.root.Key+" }\n", 1)
	s.server = startServer(t, text)
	return s
}

// deprived takes the right that the member lacks out of a configuration.
func (m *member) deprived(t *testing.T, text string) string {
	t.Helper()
	before, user, found := strings.Cut(text, "nkey: "+m.Key)
	user, after, ends := strings.Cut(user, "nkey: ")
	publish, subscribe, both := strings.Cut(user, "subscribe:")
	lists := map[rights.Verb]string{rights.Publish: publish, rights.Subscribe: subscribe}
	line := fmt.Sprintf(" %q\n", m.lacks.of(m.Identity))
	if !found || !both || strings.Count(lists[m.lacks.verb], line) != 1 {
		t.Fatalf("%s %s does not have the right %v once", m.Role, m.Name, m.lacks)
	}
	lists[m.lacks.verb] = strings.Replace(lists[m.lacks.verb], line, fmt.Sprintf(" %q\n", unused), 1)
	text = before + "nkey: " + m.Key + lists[rights.Publish] + "subscribe:" + lists[rights.Subscribe]
	if ends {
		text += "nkey: " + after
	}
	return text
}

// trialConn connects Boxfleet's code as a member, and keeps the first refusal of the server.
type trialConn struct {
	*jetstream.Conn

	member  *member
	refused chan string // the first refusal
}

// connect connects as a member. When the server refuses one of the member's calls, the connection closes, so that the
// other calls soon fail.
func (s *trials) connect(ctx context.Context, m *member) (*trialConn, error) {
	c := &trialConn{member: m, refused: make(chan string, 1)}
	var err error
	cfg := jetstream.Config{
		URL: s.server.ClientURL(), Name: m.Name, Tenant: m.Tenant, Timeout: 5 * time.Second,
		Logger: slog.New(slog.DiscardHandler), WithoutStreams: m.Role.Account() == rights.Clients,
		Options: func(o *nats.Options) {
			o.Nkey, o.SignatureCB, o.AllowReconnect = m.Key, m.pair.Sign, false
			o.AsyncErrorCB = func(nc *nats.Conn, _ *nats.Subscription, err error) {
				if errors.Is(err, nats.ErrPermissionViolation) {
					select {
					case c.refused <- err.Error():
					default:
					}
					go nc.Close() // not here: Close waits for this callback
				}
			}
		},
	}
	if m != s.root {
		cfg.User = userOf(m.Identity)
	}
	c.Conn, err = jetstream.Connect(ctx, cfg)
	return c, err
}

// mark publishes a message that no role may publish. The refusal of this message comes after the refusals of all
// earlier messages.
func (c *trialConn) mark() error {
	return c.Beat(&protocol.Heartbeat{Worker: markWorker})
}

const markWorker = "nobody"

var refusedSubject = regexp.MustCompile(`(Publish|Subscription) to "([^"]+)"`)

// isRefusalOf reports whether a server's error refuses an action that the right permits.
func (r right) isRefusalOf(text string, id rights.Identity) bool {
	found := refusedSubject.FindStringSubmatch(text)
	verb := map[rights.Verb]string{rights.Publish: "Publish", rights.Subscribe: "Subscription"}[r.verb]
	return found != nil && found[1] == verb && covers(r.of(id), found[2])
}

// scenario uses every right of a role. It returns once it has used them all, or when ctx ends.
type scenario func(ctx context.Context, conn *trialConn) error

// judge runs a scenario as a member. A member with all rights must succeed. If a member lacks a right, the server must
// refuse something that the right permits; otherwise the role does not need the right.
func (s *trials) judge(t *testing.T, m *member, run scenario) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trialTime)
	defer cancel()
	conn, err := s.connect(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	outcome := make(chan error, 1)
	ended.Go(func() {
		err := run(ctx, conn)
		if err == nil {
			err = conn.mark()
		}
		outcome <- err
	})
	defer ended.Wait()
	defer conn.Close()
	defer cancel()
	var refusal string
	select {
	case refusal = <-conn.refused:
	case err = <-outcome:
		if err == nil {
			refusal = <-conn.refused // mark causes at least one refusal
		} else {
			select {
			case refusal = <-conn.refused:
			case <-time.After(time.Second): // the server's refusal may arrive after the error that it caused
			}
		}
	}
	if strings.Contains(refusal, protocol.HeartbeatSubject(markWorker)) {
		refusal = ""
	}
	switch {
	case m.lacks == (right{}) && (refusal != "" || err != nil):
		t.Errorf("with all rights, the %s fails: %v; refused: %s", m.Role, err, refusal)
	case m.lacks == (right{}):
	case refusal == "" && err == nil:
		t.Errorf("nothing that the %s does needs the right to %s to %s", m.Role, m.lacks.verb, m.lacks.subject)
	case !m.lacks.isRefusalOf(refusal, m.Identity):
		t.Errorf("without the right to %s to %s, the %s fails with %v; refused: %s", m.lacks.verb, m.lacks.subject,
			m.Role, err, refusal)
	}
}

// trialTime is the longest time for one scenario.
const trialTime = 30 * time.Second

// eachRight returns members of a role: one member with all rights, and for each right a member that lacks this right.
// The function make returns the identity of member number n.
func eachRight(t *testing.T, role rights.Role, make func(n int) rights.Identity) (members []*member) {
	t.Helper()
	for n, lacks := range append([]right{{}}, usual(role)...) {
		members = append(members, newMember(t, make(n), lacks))
	}
	return members
}

// judgeAll judges all members at once.
func (s *trials) judgeAll(t *testing.T, members []*member, run scenario) {
	t.Helper()
	for _, m := range members {
		name := "all"
		if m.lacks != (right{}) {
			name = "no " + string(m.lacks.verb) + " " + m.lacks.subject
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.judge(t, m, run)
		})
	}
}

// raw is a NATS connection without limits.
func (s *trials) raw(t *testing.T) (*nats.Conn, natsjs.JetStream) {
	t.Helper()
	nc, err := nats.Connect(s.server.ClientURL(), nats.Nkey(s.root.Key, s.root.pair.Sign))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// digestOf returns the digest of a text, in the form that uploads use.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + hex.EncodeToString(sum[:])
}
