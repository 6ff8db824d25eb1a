package sdk_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// tenantRights are the subjects that a client of a tenant publishes and subscribes to. None of them belongs to
// JetStream's API, a bucket or the object store.
func tenantRights(tenant, user string) *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"boxfleet.v1.request." + tenant + "." + user + ".*.*", "boxfleet.v1.api." + tenant + "." + user + ".*",
			"boxfleet.v1.blob." + tenant + "." + user + ".*.*",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{
			protocol.Inbox(tenant, user) + ".>", "boxfleet.v1.live." + tenant + ".*", "boxfleet.v1.log." + tenant + ".*.*",
			"boxfleet.v1.status",
		}},
	}
}

// serverWithRights runs a server with a coordinator, which has all rights, and with users, which have the rights of
// their tenants. users maps each user to a tenant; the name of the tenant is also the user's password.
func serverWithRights(t *testing.T, users map[string]string) (url string) {
	t.Helper()
	return runWithRights(t, users).ClientURL()
}

func runWithRights(t *testing.T, users map[string]string) *server.Server {
	t.Helper()
	opts := &server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
		Users: []*server.User{{Username: "coordinator", Password: "secret"}},
	}
	for user, tenant := range users {
		opts.Users = append(opts.Users, &server.User{Username: user, Password: tenant,
			Permissions: tenantRights(tenant, user)})
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.ClientURL(),
		Login: func() (jetstream.Login, error) {
			return jetstream.Login{User: "coordinator", Password: "secret"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- coordinator.Run(ctx, coordinator.Config{Conn: conn, Name: "c", Build: "test",
			OnReady: func() { close(ready) }})
	}()
	t.Cleanup(func() { stop(); <-ended; conn.Close() })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return s
}

// A server whose disk is full may disable JetStream until it is restarted. A user has no right to ask JetStream, and
// learns it all the same.
func TestAUserLearnsThatJetStreamIsDisabled(t *testing.T) {
	t.Parallel()
	s := runWithRights(t, map[string]string{"anna": "blue"})
	c := asUser(t, s.ClientURL(), "blue", "anna")
	if err := s.ShutdownJetStream(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := c.Create(ctx, sdk.SandboxSpec{Image: "i"}, sdk.WithWait(false))
	if text := fmt.Sprint(err); ctx.Err() != nil || !strings.Contains(text, "JetStream is disabled") ||
		!strings.Contains(text, "restart the server") {
		t.Errorf("a create fails with %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err = c.Sandbox("web").Extend(ctx, time.Hour)
	if text := fmt.Sprint(err); !strings.Contains(text, "JetStream is disabled") {
		t.Errorf("an extend fails with %v", err)
	}
}

// asUser connects a user and fails the test if the server refuses the user a subject.
func asUser(t *testing.T, url, tenant, user string) *sdk.Client {
	t.Helper()
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{
		URL: url, Tenant: tenant, User: user, WithoutStreams: true,
		Login: func() (jetstream.Login, error) { return jetstream.Login{User: user, Password: tenant}, nil },
		Options: func(o *nats.Options) {
			report := o.AsyncErrorCB
			o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
				t.Errorf("the server refuses %s: %v", user, err)
				report(nc, sub, err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	c, err := sdk.Connect(t.Context(), sdk.Options{Conn: conn, Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A client needs none of JetStream's own subjects: requests, reads, histories, live events and uploads go through
// subjects of its tenant.
func TestATenantNeedsNoRightToJetStream(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := serverWithRights(t, map[string]string{"alice": "acme"})
	c := asUser(t, url, "acme", "alice")
	if _, err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := c.Create(ctx, sdk.SandboxSpec{Image: "busybox"}, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if actor := b.Info().Actor; actor != "alice" {
		t.Errorf("the sandbox was created by %q, want alice", actor)
	}
	if skew := time.Until(c.Now(ctx)); skew.Abs() > time.Minute {
		t.Errorf("the store's clock is %s ahead", skew)
	}

	kinds := make(chan protocol.Kind, 100)
	go func() {
		defer close(kinds)
		for e, err := range b.Events(ctx, sdk.WithFollow(true)) {
			if err != nil {
				t.Errorf("follow: %v", err)
				return
			}
			kinds <- e.Kind
		}
	}()
	if err := b.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	var followed []protocol.Kind
	for kind := range kinds {
		followed = append(followed, kind)
	}
	if !slices.Contains(followed, protocol.SandboxAccepted) || followed[len(followed)-1] != protocol.SandboxDeleted {
		t.Errorf("followed %v", followed)
	}

	source := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 3<<20+17)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	if err := os.WriteFile(filepath.Join(source, "file"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	copied, err := c.Upload(ctx, source, "/src")
	if err != nil {
		t.Fatal(err)
	}
	sent := int64(0)
	again, err := c.Upload(ctx, source, "/src", sdk.WithProgress(func(n, _ int64) { sent = n }))
	if err != nil || again.Digest != copied.Digest || sent != 0 {
		t.Errorf("the second upload sent %d bytes: %v, %v", sent, again, err)
	}
}

// A tenant cannot use the upload of another tenant, even if it knows the digest.
func TestAnUploadBelongsToItsTenant(t *testing.T) {
	t.Parallel()
	url := serverWithRights(t, map[string]string{"alice": "acme", "bob": "other"})
	alice, bob := asUser(t, url, "acme", "alice"), asUser(t, url, "other", "bob")
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	sends := func(c *sdk.Client) bool {
		sent := int64(0)
		if _, err := c.Upload(t.Context(), source, "/f", sdk.WithProgress(func(n, _ int64) { sent = n })); err != nil {
			t.Fatal(err)
		}
		return sent > 0
	}
	if !sends(alice) || sends(alice) || !sends(bob) {
		t.Error("a tenant found another tenant's upload, or did not find its own")
	}
}

// A request that names another user's inbox for its answer is neither carried out nor answered.
func TestAnAnswerGoesToItsUsersInboxOnly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := serverWithRights(t, map[string]string{"alice": "acme", "bob": "acme"})
	bob := asUser(t, url, "acme", "bob")
	alice, err := nats.Connect(url, nats.UserInfo("alice", "acme"),
		nats.CustomInboxPrefix(protocol.Inbox("acme", "alice")))
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	m := nats.NewMsg(protocol.UserRequestSubject("acme", "alice", protocol.VerbCreate, "forged"))
	m.Header.Set(protocol.HeaderReply, protocol.Inbox("acme", "bob")+".x")
	m.Header.Set(protocol.HeaderRequest, "r1")
	m.Data = []byte(`{"v":1,"sandbox":{"image":"busybox"}}`)
	if _, err := alice.RequestMsgWithContext(ctx, m); err != nil {
		t.Fatal(err)
	}
	m.Subject = protocol.UserRequestSubject("acme", "alice", protocol.VerbCreate, "mine")
	m.Header.Set(protocol.HeaderReply, protocol.Inbox("acme", "alice")+".x")
	m.Header.Set(protocol.HeaderRequest, "r2")
	if _, err := alice.RequestMsgWithContext(ctx, m); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the request with an own inbox is carried out", func() bool {
		_, err := bob.Get(ctx, "mine")
		return err == nil
	})
	_, err = bob.Get(ctx, "forged")
	wantError(t, err, protocol.NotFound, "")
}

// A client can put any inbox and any user into a request. None of these names may make the server close the connection
// of a coordinator. Otherwise the request would end each coordinator that receives it.
func TestNoNameEndsACoordinator(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := serverWithRights(t, map[string]string{"alice": "acme"})
	c := asUser(t, url, "acme", "alice")
	nc, err := nats.Connect(url, nats.UserInfo("coordinator", "secret")) // may publish everywhere
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	long := protocol.Inbox("acme", "alice") + "." + strings.Repeat("a", 5000)
	for i, inbox := range []string{long, "_INBOX." + strings.Repeat("a", 5000), "_INBOX.acme.alice.a..b",
		"_INBOX.acme.alice.>"} {
		for _, subject := range []string{
			protocol.UserRequestSubject("acme", "alice", protocol.VerbCreate, "x"),
			protocol.RequestSubject("acme", protocol.VerbCreate, "x"),
		} {
			m := nats.NewMsg(subject)
			m.Header.Set(protocol.HeaderReply, inbox)
			m.Header.Set(protocol.HeaderRequest, fmt.Sprintf("r%d", i))
			m.Data = []byte(`{"v":1,"sandbox":{"image":7}}`)
			if _, err := nc.RequestMsgWithContext(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	digest := "sha256-" + strings.Repeat("ab", 32)
	for _, subject := range []string{
		"boxfleet.v1.blob.acme.>." + digest + ".begin", "boxfleet.v1.blob.acme.a*." + digest + ".begin",
		"boxfleet.v1.api.acme.>.get",
	} {
		if err := nc.PublishRequest(subject, "_INBOX.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	// This request becomes a dead letter. With all headers of the request, the dead letter would exceed the server's
	// limit.
	m := nats.NewMsg(protocol.UserRequestSubject("acme", "alice", protocol.VerbStop, "x"))
	m.Header.Set(protocol.HeaderContentType, "application/json;"+strings.Repeat("x", 60_000))
	m.Header.Set(protocol.HeaderRequest, "r9")
	m.Data = []byte(`{`)
	if _, err := nc.RequestMsgWithContext(ctx, m); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := c.Create(ctx, sdk.SandboxSpec{Image: "busybox"}, sdk.WithWait(false)); err != nil {
			t.Fatal(err)
		}
	}
}

// A user sees the quota and the use of its own tenant, and nothing of other tenants.
func TestAUserSeesItsOwnTenantOnly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := asUser(t, serverWithRights(t, map[string]string{"alice": "acme"}), "acme", "alice")
	if _, err := c.Create(ctx, sdk.SandboxSpec{Image: "busybox"}, sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the sandbox that waits is counted", func() bool {
		got, err := c.TenantInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return got.Tenant == "acme" && got.Quota == (sdk.Quota{}) && got.Used.Waiting == 1
	})
	_, err := sdk.ReadAll(c.Tenants(ctx))
	wantError(t, err, protocol.PermissionDenied, "")
}
