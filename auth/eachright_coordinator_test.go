package auth_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// deciding is a deployment in which a coordinator does everything that coordinators do. All other connections have all
// rights.
type deciding struct {
	conn, root, anna *trialConn
	user             *sdk.Client
	raw              natsjs.JetStream // without limits
	rawConn          *nats.Conn
}

// until waits until a condition holds. It fails when ctx ends.
func until(ctx context.Context, what string, holds func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for this without success: %s", what)
		}
	}
	return nil
}

// run runs a coordinator until stop is called. The coordinator drops segments older than maxAge. With maxAge 0 it drops
// none.
func (d *deciding) run(ctx context.Context, maxAge time.Duration) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	const often = 20 * time.Millisecond
	go func() {
		ended <- coordinator.Run(ctx, coordinator.Config{
			Conn: d.conn.Conn, Name: d.conn.member.Name, Build: "0.0.1", Logger: slog.New(slog.DiscardHandler),
			OnReady: func() { close(ready) }, CleanupTTL: 10 * often,
			HostForgetAfter: time.Millisecond,
			Histories:       coordinator.Histories{Keep: 4, MinBatches: 4, MaxAge: maxAge},
			Output:          coordinator.OutputBudget{Sandbox: 100},
			Timing: coordinator.Timing{Scan: often, Seize: often, Snapshot: often, Compact: often, Output: often,
				Suspect: 10 * often, Unwanted: time.Nanosecond, Abandon: often},
		})
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	select {
	case <-ready:
		return stop, nil
	case err := <-ended:
		cancel()
		return nil, errors.Join(err, errors.New("the coordinator ended"))
	}
}

// everything runs a deployment through its whole life.
func (d *deciding) everything(ctx context.Context) error {
	if err := d.firstStart(ctx); err != nil {
		return err
	}
	return d.nextStart(ctx)
}

// firstStart runs the first coordinator of the deployment and gives it work.
func (d *deciding) firstStart(ctx context.Context) (err error) {
	stop, err := d.run(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	leave, err := d.host(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	for _, s := range []step{
		{"work with a sandbox", func() error { return d.sandbox(ctx, "kept") }},
		{"measure a sandbox", func() error { return d.measured(ctx, "kept") }},
		{"delete a sandbox", func() error { return d.deleted(ctx) }},
		{"ids without a history", func() error { return d.abandoned(ctx) }},
		{"requests that nobody can process, and uploads that end early", func() error { return d.refuse(ctx) }},
		{"hosts and images", func() error { return d.hostsAndImages(ctx) }},
		{"secrets", func() error { return d.secrets(ctx) }},
		{"news of an election", func() error { return d.elected(ctx) }},
	} {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// nextStart gives the streams old settings, and then starts another coordinator.
func (d *deciding) nextStart(ctx context.Context) (err error) {
	if err := d.outdate(ctx); err != nil {
		return err
	}
	stop, err := d.run(ctx, time.Millisecond)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return d.requestsPassAFullLog(ctx)
}

// host registers a host whose worker stays alive until leave is called.
func (d *deciding) host(ctx context.Context) (leave func() error, err error) {
	host := &protocol.Host{Worker: "w1", HostID: "h1", Instance: "i", Slots: 10, Memory: 10 << 30, CPU: 4, Healthy: true,
		Firewall: protocol.FirewallNFTables, ReadsSegments: true, SeenAt: time.Now()}
	if err := d.root.RegisterHost(ctx, host); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var failed error
		for failed == nil && ctx.Err() == nil {
			failed = d.root.Beat(&protocol.Heartbeat{Worker: "w1", HostID: "h1", Instance: "i", Healthy: true})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		ended <- failed
	}()
	return func() error { cancel(); return <-ended }, nil
}

// sandbox creates a sandbox and changes it until older parts of its history are in segments.
func (d *deciding) sandbox(ctx context.Context, name string) error {
	text := "content of " + name
	if err := d.anna.TenantReads("blue").Upload(ctx, digestOf(text), strings.NewReader(text)); err != nil {
		return err
	}
	b, err := d.user.Create(ctx, sdk.SandboxSpec{Image: "i", Command: []string{"true"},
		Copies: []sdk.Copy{{Digest: digestOf(text), Target: "/f"}}}, sdk.WithWait(false), sdk.WithName(name))
	if err != nil {
		return err
	}
	if err := until(ctx, "the sandbox is assigned", func() bool {
		return b.Refresh(ctx) == nil && b.Info().Assigned
	}); err != nil {
		return err
	}
	if err := d.root.append(ctx, "w1", b.ID(), isReady); err != nil {
		return err
	}
	for i := range 12 {
		x, err := b.Start(ctx, sdk.ExecSpec{Command: []string{"true"}})
		if err != nil {
			return err
		}
		if err := d.root.append(ctx, "w1", b.ID(),
			protocol.Event{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: x.ID()}}); err != nil {
			return err
		}
		if err := d.root.prints("h1", b.ID(), strings.Repeat("x", 100), int64(i)*100); err != nil {
			return err
		}
	}
	for what, stream := range map[string]string{
		"a segment is stored": "OBJ_" + protocol.BucketSegments, "execs are indexed": "KV_" + protocol.BucketExecIDs,
		"a snapshot is stored": "KV_" + protocol.BucketSandboxes,
	} {
		if err := until(ctx, what, func() bool { return d.messages(ctx, stream) > 0 }); err != nil {
			return err
		}
	}
	_, err = sdk.ReadAll(b.Execs(ctx))
	_, err2 := sdk.ReadAll(b.Events(ctx))
	_, err3 := sdk.ReadAll(b.Logs(ctx))
	_, err4 := d.user.Ping(ctx)
	return errors.Join(err, err2, err3, err4)
}

// deleted makes a sandbox as the method sandbox does, deletes it, and waits until nothing of the sandbox is stored.
func (d *deciding) deleted(ctx context.Context) error {
	if err := d.sandbox(ctx, "gone"); err != nil {
		return err
	}
	b := d.user.Sandbox("gone")
	if err := b.Refresh(ctx); err != nil {
		return err
	}
	if err := b.Delete(ctx, sdk.WithWait(false)); err != nil {
		return err
	}
	if err := d.root.append(ctx, "w1", b.ID(), protocol.Event{Kind: protocol.SandboxDeleted}); err != nil {
		return err
	}
	return until(ctx, "the history is purged", func() bool {
		purged, err := d.root.Purged(ctx, "blue", b.ID())
		return err == nil && purged
	})
}

// abandoned reserves an id and writes no history, like a coordinator that ends after the reservation.
func (d *deciding) abandoned(ctx context.Context) error {
	if _, err := d.root.ReserveSandbox(ctx, "blue", "lost", protocol.Reservation{
		Version: protocol.Version, Request: "r", Time: d.root.Now().Add(-time.Hour)}); err != nil {
		return err
	}
	return until(ctx, "the id is given up", func() bool {
		_, err := d.root.LastBatch(ctx, "blue", "lost")
		return err == nil
	})
}

// refuse makes a dead letter, and begins an upload that is aborted.
func (d *deciding) refuse(ctx context.Context) error {
	const sent = "boxfleet.v1.request.blue.anna.create.odd"
	if err := d.rawConn.Publish(sent, []byte("no request")); err != nil {
		return err
	}
	if err := until(ctx, "a dead letter is stored", func() bool {
		return d.messages(ctx, protocol.StreamDead) > 0
	}); err != nil {
		return err
	}
	for range 2 { // when the request is sent again, a coordinator finds the dead letter
		if err := d.rawConn.Publish(sent, []byte("no request")); err != nil {
			return err
		}
	}
	reader, writer := io.Pipe()
	failed := errors.New("the client gives up")
	go func() {
		_, err := writer.Write(make([]byte, 1<<20))
		writer.CloseWithError(errors.Join(err, failed))
	}()
	if err := d.anna.TenantReads("blue").Upload(ctx, digestOf("other"), reader); !errors.Is(err, failed) {
		return fmt.Errorf("the upload ended with %w", err)
	}
	return until(ctx, "the upload is discarded", func() bool { return d.messages(ctx, "OBJ_"+protocol.BucketBlobs) == 4 })
}

// measured asks what a sandbox uses.
func (d *deciding) measured(ctx context.Context, name string) error {
	stop, err := d.root.ServeMeasures(ctx, "w1", "h1", usesNothing)
	if err != nil {
		return err
	}
	defer stop()
	if err := d.root.Flush(ctx); err != nil {
		return err
	}
	return second(d.user.Sandbox(name).Usage(ctx))
}

// secrets stores and removes a secret, and sends the coordinator a request for a secret and a worker's question.
func (d *deciding) secrets(ctx context.Context) error {
	revision, err := d.conn.PutSecret(ctx, "blue", "db", protocol.SecretVersion{Version: 1}, []byte("sealed"), 0)
	if err != nil {
		return err
	}
	if err := d.conn.DropSecret(ctx, "blue", "db", 1, revision); err != nil {
		return err
	}
	if err := refusedWithoutKey(d.user.Secrets().Remove(ctx, "db")); err != nil {
		return err
	}
	const inbox = "_INBOX.@w1.answer"
	sub, err := d.rawConn.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	question := protocol.Encode(&protocol.UnsealQuery{Version: protocol.Version})
	if err := d.rawConn.PublishRequest(protocol.UnsealSubject("w1", "h1", "none"), inbox, question); err != nil {
		return err
	}
	_, err = sub.NextMsgWithContext(ctx)
	return err
}

// hostsAndImages loses a host, forgets it, and removes the file of an image that nobody wants.
func (d *deciding) hostsAndImages(ctx context.Context) error {
	if err := d.root.RegisterHost(ctx, &protocol.Host{Worker: "w2", HostID: "h2", SeenAt: time.Now()}); err != nil {
		return err
	}
	lease, err := d.root.AcquireHost(ctx, "h2", jetstream.Holder{Name: "w2", Instance: "i"}, 0)
	if err != nil {
		return err
	}
	if err := d.root.PublishImages(ctx, &protocol.HostImages{Worker: "w2"}); err != nil {
		return err
	}
	if err := d.root.PutImageFile(ctx, "sha256-y", strings.NewReader("content")); err != nil {
		return err
	}
	if err := lease.Release(ctx); err != nil {
		return err
	}
	for what, holds := range map[string]func() bool{
		"the host's images are forgotten": func() bool {
			_, hosts, err := d.root.Images(ctx)
			return err == nil && len(hosts) == 0
		},
		"the unwanted file is removed": func() bool {
			_, err := d.root.ImageFile(ctx, "sha256-y")
			return protocol.CodeOf(err) == protocol.NotFound
		},
	} {
		if err := until(ctx, what, holds); err != nil {
			return err
		}
	}
	return nil
}

// elected sends the notice that a server of a cluster sends after an election.
func (d *deciding) elected(ctx context.Context) error {
	heard := make(chan struct{}, 100)
	stop, err := d.root.FollowStatus(func(*protocol.Status) { heard <- struct{}{} })
	if err != nil {
		return err
	}
	defer stop()
	if err := d.root.Flush(ctx); err != nil {
		return err
	}
	if err := d.rawConn.Publish("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+protocol.StreamEvents, nil); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return errors.New("no status after an election")
	}
}

// outdate gives all streams settings that a coordinator corrects when it starts.
func (d *deciding) outdate(ctx context.Context) error {
	for info := range d.raw.ListStreams(ctx).Info() {
		info.Config.Description = ""
		info.Config.AllowDirect = !info.Config.AllowDirect
		if _, err := d.raw.UpdateStream(ctx, info.Config); err != nil {
			return err
		}
	}
	return nil
}

// requestsPassAFullLog makes the coordinator take a delete while another request waits for room in the log.
func (d *deciding) requestsPassAFullLog(ctx context.Context) error {
	b, err := d.user.Create(ctx, sdk.SandboxSpec{Image: "i"}, sdk.WithWait(false))
	if err != nil {
		return err
	}
	var waits atomic.Bool
	stop, err := d.root.FollowStatus(func(s *protocol.Status) { waits.Store(s.Waiting != nil) })
	if err != nil {
		return err
	}
	defer stop()
	d.conn.SetWorkMustWait("the disk is nearly full")
	defer d.conn.SetWorkMustWait("")
	if err := until(ctx, "requests wait", waits.Load); err != nil {
		return err
	}
	if err := d.rawConn.Publish("boxfleet.v1.request.blue.@root.create.waits",
		[]byte(`{"v":1,"sandbox":{"image":"i"}}`)); err != nil {
		return err
	}
	if err := d.rawConn.Flush(); err != nil {
		return err
	}
	if err := b.Delete(ctx, sdk.WithWait(false)); err != nil {
		return err
	}
	return until(ctx, "the delete leaves the queue ahead of the create", func() bool {
		queued, err := d.root.RequestQueued(ctx, "blue", protocol.VerbDelete, b.ID())
		return err == nil && !queued
	})
}

// messages returns how many messages a stream has.
func (d *deciding) messages(ctx context.Context, stream string) uint64 {
	s, err := d.raw.Stream(ctx, stream)
	if err != nil {
		return 0
	}
	return s.CachedInfo().State.Msgs
}

func TestACoordinatorNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, 8)
	for n, lacks := range append([]right{{}}, usual(rights.Coordinator)...) {
		m := newMember(t, someone(rights.Coordinator, fmt.Sprint("c", n), "", ""), lacks)
		name := "all"
		if lacks != (right{}) {
			name = "no " + string(lacks.verb) + " " + lacks.subject
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			anna := newMember(t, someone(rights.User, "anna", "blue", ""), right{})
			s := startTrials(t, m, anna)
			d := &deciding{root: s.open(t, s.root), anna: s.open(t, anna)}
			d.rawConn, d.raw = s.raw(t)
			s.judge(t, m, func(ctx context.Context, conn *trialConn) error {
				d.conn = conn
				var err error
				if d.user, err = sdk.Connect(ctx, sdk.Options{Conn: d.anna.Conn, Tenant: "blue"}); err != nil {
					return err
				}
				defer d.user.Close()
				if updates := "$JS.API.STREAM.UPDATE."; !strings.HasPrefix(lacks.subject, updates) {
					return d.everything(ctx)
				}
				if err := d.root.Provision(ctx, jetstream.Assets{}); err != nil { // takes the place of the first start
					return err
				}
				return d.nextStart(ctx)
			})
		})
	}
}
