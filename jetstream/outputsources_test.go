package jetstream_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// say publishes text as output at an offset of stdout, from a host.
func say(t *testing.T, c *jetstream.Conn, host, tenant, text string, offset int) {
	t.Helper()
	end := int64(offset + len(text))
	ack, err := c.PublishOutput(host, tenant, "s", "x", jetstream.Chunk{Stream: jetstream.Stdout, Offset: int64(offset),
		NextStdout: end, Data: []byte(text)})
	must(t, err)
	must(t, receive(t, 15*time.Second, "the acknowledgement", ack))
}

// sayAsBefore publishes text as workers of earlier versions do.
func sayAsBefore(t *testing.T, d *deployment, text string, offset int) {
	t.Helper()
	m := nats.NewMsg(protocol.LogSubject(d.tenant, "s", "x"))
	m.Header.Set(protocol.HeaderStream, jetstream.Stdout)
	m.Header.Set(protocol.HeaderOffset, strconv.Itoa(offset))
	m.Header.Set(protocol.HeaderNextOut, strconv.Itoa(offset+len(text)))
	m.Header.Set(protocol.HeaderNextErr, "0")
	m.Data = []byte(text)
	answer, err := d.raw(t).RequestMsg(m, 15*time.Second)
	must(t, err)
	if !strings.Contains(string(answer.Data), `"stream":"`+protocol.StreamLogs+`"`) {
		t.Fatalf("not stored: %s", answer.Data)
	}
}

// wantOutput reads the same output in four ways and checks each result: in one read, chunk by chunk, its end only, and
// as a page from each offset.
func wantOutput(t *testing.T, c *jetstream.Conn, tenant, want string, hosts ...protocol.OutputHost) {
	t.Helper()
	of := jetstream.OutputOf{Tenant: tenant, Sandbox: "s", Log: "x", Hosts: hosts}
	got := ""
	_, err := c.ReadOutput(t.Context(), of, 0, func(k jetstream.Chunk) error {
		got += string(k.Data)
		return nil
	})
	if err != nil || got != want {
		t.Errorf("read %q, %v, want %q", got, err, want)
	}
	got = ""
	one := fmt.Errorf("one chunk is enough")
	for next := uint64(1); ; {
		read := ""
		next, err = c.ReadOutput(t.Context(), of, next, func(k jetstream.Chunk) error {
			read = string(k.Data)
			return one
		})
		if got += read; err == nil {
			break
		}
		if err != one {
			t.Fatal(err)
		}
	}
	if got != want {
		t.Errorf("read chunk by chunk %q, want %q", got, want)
	}
	end, _, err := c.OutputEnd(t.Context(), of)
	if err != nil || end != int64(len(want)) {
		t.Errorf("the output ends at %d, %v, want %d", end, err, len(want))
	}
	for offset := range want {
		p, err := c.OutputPage(t.Context(), of, jetstream.Stdout, int64(offset), 100, int64(len(want)))
		if err != nil || string(p.Data) != want[offset:] {
			t.Errorf("the page from %d has %+v, %v, want %q", offset, p, err, want[offset:])
		}
	}
}

func TestOutputOfOtherHostsIsNotRead(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	say(t, c, "HOSTB", d.tenant, "forged", 0)
	say(t, c, "HOSTA", d.tenant, "right", 0)
	say(t, c, "HOSTB", d.tenant, "forged", 5)
	wantOutput(t, c, d.tenant, "right", protocol.OutputHost{ID: "HOSTA"})
	wantOutput(t, c, d.tenant, "")
}

// TestAHostCountsWhileTheSandboxIsOnIt moves a sandbox from host A to B and back. Both workers also publish output
// while the sandbox is on the other host.
func TestAHostCountsWhileTheSandboxIsOnIt(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	for range 5 {
		say(t, c, "HOSTB", d.tenant, "early", 0)
	}
	say(t, c, "HOSTA", d.tenant, "one ", 0)
	say(t, c, "HOSTA", d.tenant, "two ", 4)
	first := time.Now() // by the clock of the server, which is on this machine
	say(t, c, "HOSTA", d.tenant, "late", 8)
	say(t, c, "HOSTB", d.tenant, "three ", 8)
	say(t, c, "HOSTA", d.tenant, "later", 14)
	onA, onB := protocol.OutputHost{ID: "HOSTA", Until: first}, protocol.OutputHost{ID: "HOSTB", From: first}
	wantOutput(t, c, d.tenant, "one two three ", onA, onB)
	wantOutput(t, c, d.tenant, "one two ", onA)
	second := time.Now()
	onB.Until = second
	for range 5 {
		say(t, c, "HOSTB", d.tenant, "forged", 14)
	}
	say(t, c, "HOSTA", d.tenant, "four", 14)
	wantOutput(t, c, d.tenant, "one two three four", onA, onB, protocol.OutputHost{ID: "HOSTA", From: second})
}

func TestOutputOfAnEarlierVersionIsReadInItsPlace(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	sayAsBefore(t, d, "one ", 0)
	wantOutput(t, c, d.tenant, "one ", protocol.OutputHost{ID: "HOSTA"})
	say(t, c, "HOSTA", d.tenant, "two ", 4)
	wantOutput(t, c, d.tenant, "one two ", protocol.OutputHost{ID: "HOSTA"})
	sayAsBefore(t, d, "three ", 8) // the host's worker moved back to the earlier version
	sayAsBefore(t, d, "four ", 14)
	say(t, c, "HOSTA", d.tenant, "five", 19)
	wantOutput(t, c, d.tenant, "one two three four five", protocol.OutputHost{ID: "HOSTA"})
	room, err := c.OutputRoom(t.Context())
	must(t, err)
	must(t, c.PurgeOutput(t.Context(), d.tenant, "s", room.Last))
	wantOutput(t, c, d.tenant, "", protocol.OutputHost{ID: "HOSTA"})
}

// TestTheStreamOfAnEarlierVersionTakesOutputOfHosts starts with a stream as earlier versions make it.
func TestTheStreamOfAnEarlierVersionTakesOutputOfHosts(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	asBefore(t, d)
	sayAsBefore(t, d, "one ", 0)
	c := d.opened(t)
	if _, err := d.raw(t).Request(protocol.OutputSubject("HOSTA", d.tenant, "s", "x"), nil, time.Second); err == nil {
		t.Fatal("the stream takes output of hosts")
	}
	before := everything(t, d, protocol.StreamLogs)
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	same(t, "the stored output", everything(t, d, protocol.StreamLogs), before)
	say(t, c, "HOSTA", d.tenant, "two", 4)
	wantOutput(t, c, d.tenant, "one two", protocol.OutputHost{ID: "HOSTA"})
}

// asBefore gives the output's stream the subjects that it has in earlier versions.
func asBefore(t *testing.T, d *deployment) {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	cfg := configOf(t, d, protocol.StreamLogs)
	cfg.Subjects = []string{protocol.LogFilter}
	_, err = js.UpdateStream(t.Context(), cfg)
	must(t, err)
}
