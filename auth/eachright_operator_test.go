package auth_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// tool is a connection as NATS's own tools make it, with an operator's credentials.
type tool struct {
	*nats.Conn
	inbox string
	asked int
}

// asTool connects a tool. If the server refuses something on this connection, the trial learns of the refusal as if the
// server had refused it on c.
func (s *trials) asTool(c *trialConn) (*tool, error) {
	nc, err := nats.Connect(s.server.ClientURL(), nats.Nkey(c.member.Key, c.member.pair.Sign), nats.NoReconnect(),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				select {
				case c.refused <- err.Error():
				default:
				}
				go nc.Close() // not here: Close waits for this callback
			}
		}))
	return &tool{Conn: nc, inbox: c.member.Inbox()}, err
}

// ask sends a question and returns the answer.
func (n *tool) ask(ctx context.Context, subject string, question any) ([]byte, error) {
	data, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	n.asked++
	inbox := fmt.Sprintf("%s.ask.%d", n.inbox, n.asked)
	sub, err := n.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := n.PublishRequest(subject, inbox, data); err != nil {
		return nil, err
	}
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		return nil, err
	}
	var answer struct{ Error *struct{ Description string } }
	if err := json.Unmarshal(m.Data, &answer); err == nil && answer.Error != nil {
		return nil, fmt.Errorf("%s: %s", subject, answer.Error.Description)
	}
	return m.Data, nil
}

// moveStream backs up, deletes and restores a stream.
func (n *tool) moveStream(ctx context.Context, name string, remove func() error) error {
	to := fmt.Sprintf("%s.backup.%s", n.inbox, name)
	sub, err := n.SubscribeSync(to)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	answer, err := n.ask(ctx, "$JS.API.STREAM.SNAPSHOT."+name, map[string]any{"deliver_subject": to})
	if err != nil {
		return err
	}
	var state map[string]json.RawMessage
	if err := json.Unmarshal(answer, &state); err != nil {
		return err
	}
	var chunks [][]byte
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		if len(m.Data) == 0 {
			break
		}
		chunks = append(chunks, m.Data)
		if m.Reply == "" {
			continue
		}
		if err := m.Respond(nil); err != nil {
			return err
		}
	}
	if err := remove(); err != nil {
		return err
	}
	answer, err = n.ask(ctx, "$JS.API.STREAM.RESTORE."+name,
		map[string]any{"config": state["config"], "state": state["state"]})
	if err != nil {
		return err
	}
	var begun struct {
		Deliver string `json:"deliver_subject"`
	}
	if err := json.Unmarshal(answer, &begun); err != nil {
		return err
	}
	for _, chunk := range append(chunks, nil) {
		if err := n.Publish(begun.Deliver, chunk); err != nil {
			return err
		}
	}
	return n.FlushWithContext(ctx)
}

// operates does everything that an operator does with hosts, images, storage and tenants.
func (d *deciding) operates(ctx context.Context, s *trials) error {
	c := d.conn
	if err := c.Change(ctx, jetstream.Assets{}); err != nil { // makes all streams
		return err
	}
	if err := d.outdate(ctx); err != nil {
		return err
	}
	if err := c.Change(ctx, jetstream.Assets{LogMaxAge: time.Hour}); err != nil {
		return err
	}
	n, err := s.asTool(c)
	if err != nil {
		return err
	}
	defer n.Close()
	root := *d
	root.conn = d.root
	stop, err := root.run(ctx, 0)
	if err != nil {
		return err
	}
	for _, step := range []step{
		{"services", func() error {
			for _, verb := range []string{"PING", "INFO", "STATS"} {
				if err := second(n.ask(ctx, "$SRV."+verb+".boxfleet", nil)); err != nil {
					return err
				}
			}
			return nil
		}},
		{"hear of losses", func() error { return second(c.OnLoss(func() {})) }},
		{"live", func() error { return second(c.Live("*", "*", func(*protocol.Batch) {})) }},
		{"heartbeats", func() error { return second(c.Heartbeats(func(*protocol.Heartbeat) {})) }},
		{"output", func() error { return second(n.SubscribeSync("boxfleet.v1.out.>")) }},
		{"tenants", func() error { return d.worksAsTenant(ctx) }},
		{"streams", func() error { return hears(ctx, c.Conn, "w9", false) }},
		{"hosts", func() error {
			return second(c.ChangeOperatorIntent(ctx, "HOSTA", func(w *protocol.OperatorIntent) error {
				w.Cordoned = true
				return nil
			}))
		}},
		{"storage", func() error { c.Storage(ctx); return nil }},
	} {
		if err := step.do(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", step.what, err), stop())
		}
	}
	if err := stop(); err != nil { // a running coordinator would remove the file of an image before the image is wanted
		return err
	}
	if err := d.imports(ctx); err != nil {
		return err
	}
	if err := d.inspects(ctx, n); err != nil {
		return err
	}
	for info := range d.raw.ListStreams(ctx).Info() {
		name := info.Config.Name
		if err := n.moveStream(ctx, name, func() error { return d.raw.DeleteStream(ctx, name) }); err != nil {
			return fmt.Errorf("back up and restore %s: %w", name, err)
		}
	}
	return nil
}

// imports imports an image and removes it.
func (d *deciding) imports(ctx context.Context) error {
	c := d.conn
	err := c.PutImageFile(ctx, "sha256-x", strings.NewReader("content"))
	if err == nil {
		err = c.WantImage(ctx, &protocol.WantedImage{Ref: "i:1", Digest: "sha256-x"})
	}
	if err == nil {
		err = read(c.ImageFile(ctx, "sha256-x"))
	}
	if err == nil {
		_, _, err = c.Images(ctx)
	}
	if err == nil {
		err = c.UnwantImage(ctx, "i:1")
	}
	return err
}

// inspects reads stored messages of each stream as NATS's own tools do. Boxfleet's commands do not read messages in
// this way.
func (d *deciding) inspects(ctx context.Context, n *tool) error {
	for info := range d.raw.ListStreams(ctx).Info() {
		last := map[string]any{"last_by_subj": ">"}
		subjects := []string{"$JS.API.STREAM.MSG.GET." + info.Config.Name}
		switch name := info.Config.Name; name {
		case protocol.StreamEvents, protocol.StreamLogs, "OBJ_" + protocol.BucketSegments, "OBJ_" + protocol.BucketBlobs:
			subjects = append(subjects, "$JS.API.DIRECT.GET."+name)
		}
		for _, subject := range subjects {
			_, err := n.ask(ctx, subject, last)
			if err != nil && !strings.HasSuffix(err.Error(), "no message found") {
				return err
			}
		}
	}
	return nil
}

// worksAsTenant creates a sandbox of a tenant, with an upload.
func (d *deciding) worksAsTenant(ctx context.Context) error {
	c, err := sdk.Connect(ctx, sdk.Options{Conn: d.conn.Conn, Tenant: "blue"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := d.conn.TenantReads("blue").Upload(ctx, digestOf("mine"), strings.NewReader("mine")); err != nil {
		return err
	}
	if err := refusedWithoutKey(c.Secrets().Remove(ctx, "none")); err != nil {
		return err
	}
	b, err := c.Create(ctx, sdk.SandboxSpec{Image: "i"}, sdk.WithWait(false))
	if err != nil {
		return err
	}
	return b.Refresh(ctx)
}

func TestAnOperatorNeedsEachOfItsRights(t *testing.T) {
	t.Parallel()
	for n, lacks := range append([]right{{}}, usual(rights.Operator)...) {
		m := newMember(t, someone(rights.Operator, fmt.Sprint("otto", n), "", ""), lacks)
		name := "all"
		if lacks != (right{}) {
			name = "no " + string(lacks.verb) + " " + lacks.subject
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worker := newMember(t, someone(rights.Worker, "w9", "", "HOSTW"), right{})
			s := startTrials(t, worker, m)
			serveStreams(t, s.open(t, worker).Conn, "w9", nil)
			d := &deciding{root: s.open(t, s.root)}
			d.rawConn, d.raw = s.raw(t)
			s.judge(t, m, func(ctx context.Context, conn *trialConn) error {
				d.conn = conn
				return d.operates(ctx, s)
			})
		})
	}
}
