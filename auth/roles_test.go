package auth_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// roleConn is a connection of Boxfleet's own code that records the refusals of the server.
type roleConn struct {
	*jetstream.Conn
	creds string // path of the credentials file

	mu      sync.Mutex
	refused []string
}

// open connects Boxfleet's own code with new credentials of an identity.
func open(t *testing.T, a *auth.Authority, url string, id rights.Identity) *roleConn {
	t.Helper()
	file := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(file, issue(t, a, id).Text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &roleConn{creds: file}
	var err error
	c.Conn, err = jetstream.Connect(t.Context(), jetstream.Config{
		URL: url, Creds: file, Name: id.Name, Timeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Tenant: id.Tenant, User: userOf(id),
		Options: func(o *nats.Options) {
			report := o.AsyncErrorCB
			o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
				c.mu.Lock()
				c.refused = append(c.refused, err.Error())
				c.mu.Unlock()
				report(nc, sub, err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// userOf returns an identity's name as it appears in subjects.
func userOf(id rights.Identity) string {
	if id.Role.HasTenant() {
		return id.Name
	}
	return "@" + id.Name
}

// refusals returns the server's refusals of everything that was sent before.
func (c *roleConn) refusals(t *testing.T) []string {
	t.Helper()
	const mark = "nobody" // a worker that does not exist: no role here may send its heartbeat
	if err := c.Beat(&protocol.Heartbeat{Worker: mark}); err != nil {
		t.Fatal(err)
	}
	at := -1
	eventually.Holds(t, 10*time.Second, "the server refuses a heartbeat", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		at = slices.IndexFunc(c.refused, func(r string) bool { return strings.Contains(r, protocol.HeartbeatSubject(mark)) })
		return at >= 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refused[:at])
}

// runCoordinator runs a coordinator on the connection until the test ends.
func runCoordinator(t *testing.T, conn *roleConn, name string, assets jetstream.Assets) {
	t.Helper()
	runCoordinatorWith(t, conn, coordinator.Config{Name: name, Assets: assets})
}

// runCoordinatorWith is like runCoordinator, with further settings. It returns the function that ends the coordinator.
func runCoordinatorWith(t *testing.T, conn *roleConn, cfg coordinator.Config) (end func()) {
	t.Helper()
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		cfg.Conn, cfg.Build, cfg.OnReady = conn.Conn, "0.0.1", func() { close(ready) }
		if cfg.Logger == nil {
			cfg.Logger = slog.New(slog.DiscardHandler)
		}
		ended <- coordinator.Run(ctx, cfg)
	}()
	end = sync.OnceFunc(func() {
		stop()
		<-ended
	})
	t.Cleanup(end)
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the coordinator ended: %v; refused: %q", err, conn.refusals(t))
	case <-time.After(60 * time.Second):
		t.Fatalf("the coordinator is not ready; refused: %q", conn.refusals(t))
	}
	return end
}

// TestTheCodeOfEachRoleWorksWithItsRights runs the code of a coordinator, a worker and an operator, each with
// credentials of its role.
func TestTheCodeOfEachRoleWorksWithItsRights(t *testing.T) {
	t.Parallel()
	a, s := newAuthority(t)
	url := s.ClientURL()
	workWithRights(t, a, jetstream.Assets{}, url, url, url)
}

// TestTheCodeOfEachRoleWorksWithItsRightsInACluster connects each role to a different server of a cluster.
func TestTheCodeOfEachRoleWorksWithItsRightsInACluster(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	trusted := trust(t, a)
	ports, err := embedded.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	var servers []*embedded.Server
	var urls []string
	for i := range 3 {
		name := string(rune('a' + i))
		s, err := embedded.Start(embedded.Config{
			Dir: filepath.Join(t.TempDir(), name), Name: name,
			ClusterName: "boxfleet", ClusterPort: ports[i], SyncLazily: true,
			Routes: []string{"nats://127.0.0.1:" + strconv.Itoa(ports[0]), "nats://127.0.0.1:" + strconv.Itoa(ports[1])},
			Operators: &embedded.Operators{
				Operator: trusted.Operator, System: trusted.System, Accounts: trusted.Accounts,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		servers, urls = append(servers, s), append(urls, s.ClientURL())
	}
	if err := embedded.WaitForLeader(servers, 60*time.Second); err != nil {
		t.Fatal(err)
	}
	workWithRights(t, a, jetstream.Assets{Replicas: 3}, urls[0], urls[1], urls[2])
}

func workWithRights(t *testing.T, a *auth.Authority, assets jetstream.Assets, forCoordinator, forWorker,
	forOperator string) {
	t.Helper()
	ctx := t.Context()
	deciding := open(t, a, forCoordinator, someone(rights.Coordinator, "c1", "", ""))
	runCoordinator(t, deciding, "c1", assets)
	worker := open(t, a, forWorker, someone(rights.Worker, "w1", "", "HOSTA"))
	operator := open(t, a, forOperator, someone(rights.Operator, "otto", "", ""))
	steps := slices.Concat(workerSteps(ctx, worker), imageSteps(ctx, t, operator, worker), operatorSteps(ctx, operator),
		coordinatorSteps(ctx, deciding), leaveSteps(ctx, worker))
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	for who, c := range map[string]*roleConn{"coordinator": deciding, "worker": worker, "operator": operator} {
		if refused := c.refusals(t); len(refused) > 0 {
			t.Errorf("the server refuses the %s %q", who, refused)
		}
	}
}

// step is one action of a role.
type step struct {
	what string
	do   func() error
}

func workerSteps(ctx context.Context, worker *roleConn) []step {
	return []step{
		{"worker: open", func() error { return worker.Open(ctx) }},
		{"worker: lock its host", func() error {
			lease, err := worker.AcquireHost(ctx, "HOSTA", jetstream.Holder{Name: "w1", Instance: "1"}, 0)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		}},
		{"worker: register", func() error {
			return worker.RegisterHost(ctx, &protocol.Host{Worker: "w1", HostID: "HOSTA"})
		}},
		{"worker: beat", func() error { return worker.Beat(&protocol.Heartbeat{Worker: "w1"}) }},
		{"worker: hear of work", func() error {
			stop, err := worker.Work("w1", func(string, string, *protocol.Batch) {})
			if err == nil {
				stop()
			}
			return err
		}},
		{"worker: register its key", func() error {
			return worker.RegisterWriter(ctx, protocol.OwnerWorker, "w1", "HOSTA")
		}},
		{"worker: append", func() error {
			_, err := worker.Append(ctx, batch("w1"), 0)
			return err
		}},
		{"worker: read a history", func() error {
			_, err := worker.History(ctx, "blue", "x", 0)
			return err
		}},
		{"worker: read the end of a history", func() error {
			return absent(second(worker.LastBatch(ctx, "blue", "x"))) // the batch is not signed, so it does not count
		}},
		{"worker: read a snapshot", func() error { return absent(second(worker.Snapshot(ctx, "blue", "y"))) }},
		{"worker: publish output", func() error {
			stored, err := worker.PublishOutput("HOSTA", "blue", "x", "e", jetstream.Chunk{Stream: jetstream.Stdout})
			if err == nil {
				err = <-stored
			}
			return err
		}},
		{"worker: read the end of output", func() error {
			_, _, err := worker.OutputEnd(ctx, jetstream.OutputOf{Tenant: "blue", Sandbox: "x", Log: "e",
				Hosts: []protocol.OutputHost{{ID: "HOSTA"}}})
			return err
		}},
		{"worker: report images", func() error {
			return worker.PublishImages(ctx, &protocol.HostImages{Worker: "w1"})
		}},
		{"worker: ask which images sandboxes wait for", func() error {
			_, err := worker.Query(ctx, protocol.DefaultTenant, protocol.EndpointAwaited, &protocol.Query{})
			return err
		}},
		{"worker: look for an upload", func() error { return absent(second(worker.Blob(ctx, "blue", "sha256-none"))) }},
	}
}

func imageSteps(ctx context.Context, t *testing.T, operator, worker *roleConn) []step {
	content := []byte("the file of an image")
	want := &protocol.WantedImage{Ref: "example/image:1", Digest: "sha256-x"}
	return []step{
		{"operator: store the file of an image", func() error {
			return operator.PutImageFile(ctx, want.Digest, bytes.NewReader(content))
		}},
		{"operator: import an image", func() error { return operator.WantImage(ctx, want) }},
		{"operator: list images", func() error {
			_, _, err := operator.Images(ctx)
			return err
		}},
		{"worker: read the file of an image", func() error {
			file, err := worker.ImageFile(ctx, want.Digest)
			if err != nil {
				return err
			}
			defer file.Close()
			var got bytes.Buffer
			if _, err = got.ReadFrom(file); err == nil && !bytes.Equal(got.Bytes(), content) {
				t.Errorf("the file of the image is %q", got.Bytes())
			}
			return err
		}},
		{"worker: hear of images that are wanted and no longer wanted", func() error {
			return hearsOfImages(ctx, t, operator, worker, want)
		}},
		{"operator: remove an image", func() error { return operator.UnwantImage(ctx, want.Ref) }},
	}
}

// hearsOfImages adds an image to the wanted images and then removes the image, while a worker follows the list of
// wanted images.
func hearsOfImages(ctx context.Context, t *testing.T, operator, worker *roleConn, first *protocol.WantedImage) error {
	t.Helper()
	ctx, stop := context.WithTimeout(ctx, 20*time.Second) // workers read the list by themselves only after a minute
	defer stop()
	lists, ended := make(chan []*protocol.WantedImage, 10), make(chan error, 1)
	go func() {
		ended <- worker.WantedImages(ctx, func(all []*protocol.WantedImage) { lists <- all })
	}()
	await := func(want ...string) error {
		for {
			select {
			case all := <-lists:
				var refs []string
				for _, w := range all {
					refs = append(refs, w.Ref)
				}
				if slices.Equal(refs, want) {
					return nil
				}
			case err := <-ended:
				return cmp.Or(err, context.Canceled)
			}
		}
	}
	second := &protocol.WantedImage{Ref: "example/image:2", Digest: first.Digest}
	if err := await(first.Ref); err != nil {
		return err
	}
	if err := operator.WantImage(ctx, second); err != nil {
		return err
	}
	if err := await(first.Ref, second.Ref); err != nil {
		return err
	}
	if err := operator.UnwantImage(ctx, second.Ref); err != nil {
		return err
	}
	return await(first.Ref)
}

func operatorSteps(ctx context.Context, operator *roleConn) []step {
	return []step{
		{"operator: cordon a host", func() error {
			_, err := operator.ChangeOperatorIntent(ctx, "HOSTA", func(w *protocol.OperatorIntent) error {
				w.Cordoned = true
				return nil
			})
			return err
		}},
		{"operator: change limits", func() error {
			if err := operator.Open(ctx); err != nil {
				return err
			}
			return operator.Change(ctx, jetstream.Assets{LogMaxAge: time.Hour})
		}},
		{"operator: read a history", func() error {
			_, err := operator.History(ctx, "blue", "x", 0)
			return err
		}},
		{"operator: follow events and status", func() error {
			stop, err := operator.Live("*", "*", func(*protocol.Batch) {})
			if err != nil {
				return err
			}
			defer stop()
			stop, err = operator.FollowStatus(func(*protocol.Status) {})
			if err == nil {
				stop()
			}
			return err
		}},
	}
}

func coordinatorSteps(ctx context.Context, deciding *roleConn) []step {
	return []step{
		{"coordinator: remove the unwanted files of images", func() error {
			return deciding.RemoveUnwantedFiles(ctx, 0)
		}},
		{"coordinator: purge a history", func() error { return deciding.PurgeHistory(ctx, "blue", "x") }},
		{"coordinator: take the lock of a lost host", func() error {
			return deciding.SeizeHost(ctx, "HOSTA", jetstream.Holder{Name: "c1", Instance: "2"},
				func(uint64) error { return nil })
		}},
		{"coordinator: keep an upload", func() error { return deciding.RenewBlob(ctx, "blue", "sha256-none") }},
		{"coordinator: store an upload", func() error {
			return deciding.PutBlob(ctx, "blue", "sha256-some", strings.NewReader("content"))
		}},
		{"coordinator: notify a worker", func() error { return deciding.NotifyWithoutBatch("w1", "blue", "x") }},
	}
}

func leaveSteps(ctx context.Context, worker *roleConn) []step {
	return []step{
		{"worker: leave", func() error {
			if err := worker.ForgetImages(ctx, "w1"); err != nil {
				return err
			}
			return worker.ForgetHost(ctx, "w1")
		}},
	}
}

// TestAUserWorksWithItsCredentials runs the SDK with the credentials of a user. The coordinator also has credentials of
// its role.
func TestAUserWorksWithItsCredentials(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, s := newAuthority(t)
	runCoordinator(t, open(t, a, s.ClientURL(), someone(rights.Coordinator, "c1", "", "")), "c1", jetstream.Assets{})
	client := func(id rights.Identity) (*sdk.Client, *roleConn) {
		t.Helper()
		conn := open(t, a, s.ClientURL(), id)
		c, err := sdk.Connect(ctx, sdk.Options{Conn: conn.Conn, Tenant: cmp.Or(id.Tenant, "blue")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c, conn
	}
	user, asUser := client(someone(rights.User, "anna", "blue", ""))
	viewer, asViewer := client(someone(rights.Viewer, "vera", "blue", ""))
	operator, asOperator := client(someone(rights.Operator, "otto", "", ""))
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	copied, err := user.Upload(ctx, source, "/f")
	if err != nil {
		t.Fatal(err)
	}
	b, err := user.Create(ctx, sdk.SandboxSpec{Image: "busybox", Copies: []sdk.Copy{copied}}, sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*sdk.Client{"anna": user, "vera": viewer, "@otto": operator} {
		seen, err := c.Get(ctx, b.ID())
		if err != nil || seen.Info().Actor != "anna" {
			t.Errorf("%s reads the sandbox of %+v: %v", name, seen, err)
		}
		events, err := sdk.ReadAll(c.Sandbox(b.ID()).Events(ctx))
		if err != nil || len(events) == 0 || events[0].Actor != "anna" {
			t.Errorf("%s reads the events %+v: %v", name, events, err)
		}
	}
	if err := operator.Sandbox(b.ID()).Delete(ctx); err != nil {
		t.Fatal(err)
	}
	events, err := sdk.ReadAll(viewer.Sandbox(b.ID()).Events(ctx))
	if err != nil || events[1].Actor != "@otto" {
		t.Errorf("the delete was requested by %+v: %v", events, err)
	}
	for who, c := range map[string]*roleConn{"user": asUser, "viewer": asViewer, "operator": asOperator} {
		if refused := c.refusals(t); len(refused) > 0 {
			t.Errorf("the server refuses the %s %q", who, refused)
		}
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := viewer.Create(short, sdk.SandboxSpec{Image: "busybox"}, sdk.WithWait(false)); err == nil {
		t.Error("a viewer creates a sandbox")
	}
}

// batch returns a writer's message that can begin a history.
func batch(writer string) *protocol.Batch {
	return &protocol.Batch{Version: protocol.Version, Tenant: "blue", Sandbox: "x", ID: "01", Writer: writer,
		Events: []protocol.Event{{Sequence: 1, Tenant: "blue", Sandbox: "x", Kind: protocol.SandboxAccepted,
			Time: time.Now().UTC()}}}
}

func second[T any](_ T, err error) error { return err }

// absent returns nil for not_found: the read was permitted.
func absent(err error) error {
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil
	}
	return err
}
