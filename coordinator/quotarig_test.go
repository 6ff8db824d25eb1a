package coordinator

import (
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// file is a file of quotas that a test can change.
type file struct {
	mu   sync.Mutex
	text string
}

func (f *file) write(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = text
}

func (f *file) read() (spec.Quotas, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return spec.ParseQuotas([]byte(f.text), spec.Options{Name: "quotas"})
}

func quotasOf(text string) *file { return &file{text: text} }

func (f *file) config(name string) Config {
	return Config{Name: name, ReadQuotas: f.read,
		Timing: Timing{Scan: 20 * time.Millisecond, Suspect: time.Minute}}
}

// leads waits until a coordinator answers about quotas as the leader.
func (d *deployment) leads(c *coordinator) {
	d.t.Helper()
	d.eventually("the coordinator leads", func() bool { return c.admitter.Load() != nil })
}

// ledByTheFirst runs two coordinators with the same quotas until stop is called. The first of them leads.
func (d *deployment) ledByTheFirst(f *file) (stop func()) {
	d.t.Helper()
	first, stopFirst := d.inMemory(f.config("c1"))
	d.leads(first)
	stopSecond := d.run(f.config("c2"))
	return func() {
		stopSecond()
		stopFirst()
	}
}

// tenant reads a tenant's quota and use.
func (d *deployment) tenant(name string) *protocol.Tenant {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), name, protocol.EndpointTenant, &protocol.Query{})
	if err != nil {
		d.t.Fatal(err)
	}
	return reply.Tenant
}

// submit submits a request of a tenant.
func (d *deployment) submit(answers *jetstream.Answers, tenant, verb, sandbox, id string,
	r protocol.Request) submitted {
	d.t.Helper()
	inbox, answer, stop := answers.Expect(id)
	d.t.Cleanup(stop)
	r.Version = protocol.Version
	if err := d.conn.Submit(d.t.Context(), tenant, verb, sandbox, id, inbox, protocol.Encode(&r)); err != nil {
		d.t.Fatal(err)
	}
	return submitted{verb, sandbox, id, answer}
}

// outcome waits for the answer to a request, and skips answers that only say that the request waits.
func (a submitted) outcome(t *testing.T) *protocol.Reply {
	t.Helper()
	for {
		if r := a.hears(t); r.Waiting == nil {
			return r
		}
	}
}

func (d *deployment) answers() *jetstream.Answers {
	d.t.Helper()
	answers, err := d.conn.Answers()
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(answers.Close)
	return answers
}

func execRequest(id string) protocol.Request {
	return protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}}
}

func small() *protocol.SandboxSpec {
	return &protocol.SandboxSpec{Image: "i", CPU: 0.01, Memory: 16 << 20}
}

// finish ends execs of a sandbox.
func (d *deployment) finish(sandbox string, n int) {
	d.t.Helper()
	d.work(sandbox, func(s *protocol.State) (events []protocol.Event) {
		for _, x := range s.Active()[:n] {
			events = append(events, protocol.Event{Kind: protocol.ExecCancelled,
				Exec: &protocol.ExecDetails{ID: x.ID, Inline: true}})
		}
		return events
	})
}

// createAs creates a sandbox of a tenant.
func (d *deployment) createAs(tenant, id string, s *protocol.SandboxSpec) *protocol.Reply {
	d.t.Helper()
	return d.submit(d.answers(), tenant, protocol.VerbCreate, id, "create-"+id, protocol.Request{Sandbox: s}).outcome(d.t)
}

func (d *deployment) mustCreateAs(tenant, id string, s *protocol.SandboxSpec) {
	d.t.Helper()
	if r := d.createAs(tenant, id, s); r.Error != nil {
		d.t.Fatal(r.Error)
	}
}

// assignedOf returns how many sandboxes of a tenant are assigned.
func (d *deployment) assignedOf(tenant string) (n int) {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), tenant, protocol.EndpointList, &protocol.Query{Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, b := range reply.Sandboxes {
		if b.Assigned {
			n++
		}
	}
	return n
}

// removeAs deletes a sandbox of a tenant, and ends it as its worker does.
func (d *deployment) removeAs(tenant, id string) {
	d.t.Helper()
	d.submit(d.answers(), tenant, protocol.VerbDelete, id, "delete-"+id, protocol.Request{}).outcome(d.t)
	d.workAs(tenant, id, protocol.Event{Kind: protocol.SandboxDeleted})
}

// workAs appends events as the worker of a tenant's sandbox does.
func (d *deployment) workAs(tenant, id string, events ...protocol.Event) {
	d.t.Helper()
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: id, Writer: "w1"})
	if _, err := j.Do(d.t.Context(), func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return events, nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

// roomy registers a host with room for everything in these tests.
func (d *deployment) roomy() {
	d.t.Helper()
	h := host("w1", 0)
	h.Slots, h.Memory, h.CPU, h.DiskQuota, h.Disk = 1000, 1<<40, 100, true, 1<<40
	d.register(h)
}
