package coordinator

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// printed adds chunks of 64 KiB to the output of a sandbox. Each chunk has the next record.
func printed(u *outputUsage, record *uint64, k key, chunks int) {
	for range chunks {
		*record++
		u.add(jetstream.StoredOutput{Tenant: k.Tenant, Sandbox: k.ID, Record: *record, Bytes: 64 << 10})
	}
}

func TestASandboxThatPrintsTooMuchLosesItsOldestOutput(t *testing.T) {
	t.Parallel()
	const chunk = 64 << 10
	quiet, loud, other := key{Tenant: "a", ID: "quiet"}, key{Tenant: "a", ID: "loud"}, key{Tenant: "b", ID: "other"}
	for name, c := range map[string]struct {
		limits outputLimits
		want   map[key]uint64 // by sandbox: the last record to remove
	}{
		"no sandbox has too much": {outputLimits{sandbox: 100 * chunk, Tenant: 200 * chunk, all: 1000 * chunk},
			nil},
		"no limits": {outputLimits{}, nil},
		// 70 of the loud sandbox's 100 chunks are left.
		"one sandbox has too much": {outputLimits{sandbox: 80 * chunk}, map[key]uint64{loud: 10 + 30 + 30}},
		// 91 of the tenant's 110 chunks are left.
		"a tenant has too much": {outputLimits{Tenant: 104 * chunk}, map[key]uint64{loud: 10 + 30 + 19}},
		// 110 of all 140 chunks are left.
		"the log is nearly full": {outputLimits{all: 144 * chunk}, map[key]uint64{loud: 10 + 30 + 30}},
		// 10 and 15 chunks of tenant a are left, and 24 of tenant b.
		"the log has room for little": {outputLimits{all: 64 * chunk},
			map[key]uint64{loud: 10 + 30 + 85, other: 10 + 6}},
	} {
		t.Run(name, func(t *testing.T) {
			u, record := newOutputUsage(0), uint64(0)
			printed(u, &record, quiet, 10)
			printed(u, &record, other, 30)
			printed(u, &record, loud, 100)
			cuts := u.cuts(c.limits, 140*chunk)
			got := map[key]uint64{}
			for _, cut := range cuts {
				got[cut.key] = cut.through
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("output must be removed up to %v, want %v", got, c.want)
			}
			for _, cut := range cuts {
				u.forget(cut.key, cut.through)
			}
			if again := u.cuts(c.limits, u.stored()); len(again) > 0 {
				t.Errorf("after the cuts, %+v must still be removed", again)
			}
		})
	}
}

func (u *outputUsage) stored() (n int64) {
	for _, t := range u.tenants {
		n += t.bytes
	}
	return n
}

func TestOutputUsageCountsTheOutputThatTheLogStillHas(t *testing.T) {
	t.Parallel()
	u, record := newOutputUsage(1<<20), uint64(0)
	for i := range 1000 {
		printed(u, &record, key{Tenant: "t", ID: fmt.Sprint(i % 10)}, 10)
	}
	if n := len(u.tenants["t"].sandboxes["3"].pieces); n > 64 {
		t.Errorf("%d pieces for 1000 chunks", n)
	}
	u.expire(5001)
	if n, want := u.stored(), int64(5000*64<<10); n < want || n > want+10<<20 {
		t.Errorf("after half has expired, %d bytes are counted; want at least %d, and at most one piece per sandbox more", n,
			want)
	}
	u.forget(key{Tenant: "t", ID: "3"}, record)
	u.forget(key{Tenant: "t", ID: "none"}, record)
	u.expire(record + 1)
	if len(u.tenants) != 0 {
		t.Errorf("%d tenants are left without any output", len(u.tenants))
	}
}

// A sandbox prints many times more than fits in the log. It loses only its own output, also after another coordinator
// has taken over and has counted the output in the log.
func TestASandboxThatPrintsWithoutEndKeepsTheOutputOfOthers(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const limit = 16 << 20
	begin := func(name string) (stop func()) {
		return d.run(Config{Name: name, Timing: Timing{Output: 20 * time.Millisecond},
			Assets: jetstream.Assets{LogMaxBytes: limit}})
	}
	stop := begin("c1")
	ctx := t.Context()
	if err := d.conn.Open(ctx); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), jetstream.ChunkSize)
	at := map[string]int64{}
	for tenant, sandboxes := range map[string][]string{"default": {"quiet", "loud"}, "other": {"quiet2"}} {
		for _, id := range sandboxes {
			d.isOn(tenant, id, "HOSTA")
		}
	}
	print := func(tenant, sandbox string, chunks int) {
		t.Helper()
		for range chunks {
			k := jetstream.Chunk{Stream: jetstream.Stdout, Offset: at[sandbox],
				NextStdout: at[sandbox] + int64(len(data)), Data: data}
			stored, err := d.conn.PublishOutput("HOSTA", tenant, sandbox, "x", k)
			if err == nil {
				err = <-stored
			}
			if err != nil {
				t.Fatal(err)
			}
			at[sandbox] = k.NextStdout
		}
	}
	kept := func(tenant, sandbox string) (from, bytes int64) {
		from = -1
		if _, err := d.conn.ReadOutput(ctx, jetstream.OutputOf{Tenant: tenant, Sandbox: sandbox, Log: "x",
			Hosts: []protocol.OutputHost{{ID: "HOSTA"}}}, 0, func(k jetstream.Chunk) error {
			if from < 0 {
				from = k.Offset
			}
			bytes += int64(len(k.Data))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return from, bytes
	}
	print("default", "quiet", 4)
	print("other", "quiet2", 4)
	for round := range 10 { // 40 MiB in all
		print("default", "loud", 16)
		eventually.Holds(t, 30*time.Second, "the loud sandbox is within its limit", func() bool {
			_, n := kept("default", "loud")
			return n <= limit/8
		})
		if round == 4 {
			stop()
			stop = begin("c2")
		}
	}
	stop()
	for tenant, sandbox := range map[string]string{"default": "quiet", "other": "quiet2"} {
		if from, n := kept(tenant, sandbox); from != 0 || n != 4*jetstream.ChunkSize {
			t.Errorf("%d bytes of sandbox %s are kept, from byte %d on", n, sandbox, from)
		}
	}
	from, n := kept("default", "loud")
	if from+n != at["loud"] || n < limit/16 {
		t.Errorf("%d bytes of the loud sandbox are kept, from byte %d on; want the newest, up to byte %d", n, from,
			at["loud"])
	}
}

// isOn makes a sandbox that is assigned to a host.
func (d *deployment) isOn(tenant, sandbox, host string) {
	d.t.Helper()
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: "c1"})
	if _, err := j.Do(d.t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{
			{Kind: protocol.SandboxAccepted, Request: sandbox,
				Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}},
			{Kind: protocol.SandboxAssigned, Details: &protocol.SandboxDetails{Worker: "w1", HostID: host, Generation: 1}},
		}, nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

// The worker of another host publishes output in the name of a sandbox. The sandbox loses none of its own output.
func TestOutputOfAnotherHostCountsInNoBudget(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const limit = 16 << 20
	defer d.run(Config{Name: "c1", Timing: Timing{Output: 20 * time.Millisecond},
		Assets: jetstream.Assets{LogMaxBytes: limit}})()
	ctx := t.Context()
	if err := d.conn.Open(ctx); err != nil {
		t.Fatal(err)
	}
	d.isOn("default", "victim", "HOSTA")
	data := bytes.Repeat([]byte("x"), jetstream.ChunkSize)
	publish := func(host, sandbox string, chunks int) {
		t.Helper()
		for i := range chunks {
			stored, err := d.conn.PublishOutput(host, "default", sandbox, "x", jetstream.Chunk{Stream: jetstream.Stdout,
				Offset: int64(i * len(data)), NextStdout: int64((i + 1) * len(data)), Data: data})
			if err == nil {
				err = <-stored
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	stored := func(host, sandbox string) (bytes int) {
		t.Helper()
		if _, err := d.conn.ReadOutput(ctx, jetstream.OutputOf{Tenant: "default", Sandbox: sandbox, Log: "x",
			Hosts: []protocol.OutputHost{{ID: host}}}, 0, func(k jetstream.Chunk) error {
			bytes += len(k.Data)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	publish("HOSTA", "victim", 4)
	for range 4 {
		publish("HOSTB", "victim", 16)
		publish("HOSTB", "nobody", 16)
		eventually.Holds(t, 30*time.Second, "the output of the other host is removed", func() bool {
			return stored("HOSTB", "victim")+stored("HOSTB", "nobody") == 0
		})
	}
	if n := stored("HOSTA", "victim"); n != 4*jetstream.ChunkSize {
		t.Errorf("%d bytes of the sandbox's own output are stored, want %d", n, 4*jetstream.ChunkSize)
	}
}
