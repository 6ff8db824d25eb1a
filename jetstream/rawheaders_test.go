package jetstream_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// rawDialer keeps the connection of a client, so that a test can write bytes that the client never sends.
type rawDialer struct{ net.Conn }

func (d *rawDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	d.Conn = c
	return c, err
}

// rawPublisher returns a function that publishes a message with headers that the client would not write. The function
// returns after the server has read the message.
func rawPublisher(t testing.TB, url string, options ...nats.Option) (publish func(subject, headers, payload string)) {
	t.Helper()
	d := &rawDialer{}
	nc, err := nats.Connect(url, append(options, nats.SetCustomDialer(d))...)
	must(t, err)
	t.Cleanup(nc.Close)
	return func(subject, headers, payload string) {
		t.Helper()
		_, err := fmt.Fprintf(d, "HPUB %s %d %d\r\n%s%s\r\n", subject, len(headers), len(headers)+len(payload), headers,
			payload)
		must(t, err)
		must(t, nc.Flush())
	}
}

// The server and the NATS client read some headers differently. Such headers mislead no reader, neither one that reads
// a history message by message nor one that reads it in batches.
func TestRawHeadersOfForgersAreNotBelieved(t *testing.T) {
	f := startSigned(t)
	publish := rawPublisher(t, f.server.ClientURL(), nats.UserCredentials(f.rogue.creds))
	const start, end = "NATS/1.0\r\n", "\r\n\r\n"
	server := func(tenant, sandbox string) string {
		return "Nats-Stream: " + protocol.StreamEvents + "\r\nNats-Subject: " + protocol.EventSubject(tenant, sandbox) +
			"\r\nNats-Sequence: 4611686018427387904\r\nNats-Time-Stamp: 2020-01-01T00:00:00Z\r\nNats-Num-Pending: 5" +
			"\r\nNats-Last-Sequence: 1"
	}
	tiny := ""
	for i := range 200 {
		tiny += fmt.Sprintf("a%d:b\n", i)
	}
	cases := map[string]func(tenant, sandbox, signature string) (headers, payload string){
		"a sequence": func(tenant, sandbox, _ string) (string, string) {
			return start + server(tenant, sandbox) + end, "x"
		},
		"a sequence and a blank line": func(tenant, sandbox, _ string) (string, string) {
			return start + server(tenant, sandbox) + end + "x: y" + end, "x"
		},
		"many short lines and a blank line": func(tenant, sandbox, _ string) (string, string) {
			return start + tiny + server(tenant, sandbox) + end + "x: y" + end, "x"
		},
		"no number": func(_, _, _ string) (string, string) { return start + "Nats-Sequence: x" + end, "x" },
		"a failure": func(_, _, _ string) (string, string) { return start + "Status: 500" + end, "" },
		"the end of a batch": func(_, _, _ string) (string, string) {
			return start + "Status: 204\r\nDescription: EOB" + end, ""
		},
		"no message":          func(_, _, _ string) (string, string) { return start + "Status: 404" + end, "" },
		"no header":           func(_, _, _ string) (string, string) { return start + "garbage" + end, "x" },
		"no header, no lines": func(_, _, _ string) (string, string) { return start + "\n\n\n" + end, "" },
		"an expected record that no server checked": func(_, _, signature string) (string, string) {
			return start + "X: y\nNats-Expected-Last-Subject-Sequence: 99999999\r\n" + signature + end, ""
		},
		"an unchecked record of the same length": func(_, _, signature string) (string, string) {
			return start + "X:  y\nNats-Expected-Last-Subject-Sequence: 99999999\r\n" + signature + end, ""
		},
	}
	for name, forge := range cases {
		for _, execs := range []int{0, 20} {
			t.Run(fmt.Sprintf("%s, %d execs", name, execs), func(t *testing.T) {
				const tenant = "t1"
				sandbox := fmt.Sprintf("s%d-%s", execs, strings.NewReplacer(" ", "-", ",", "").Replace(name))
				f.ready(t, tenant, sandbox)
				deciding, working := f.coordinator.journal(tenant, sandbox), f.worker.journal(tenant, sandbox)
				for i := range execs {
					do(t, deciding, execAccepted(fmt.Sprintf("x%d", i)))
				}
				must(t, deciding.Refresh(t.Context()))
				must(t, working.Refresh(t.Context()))
				before, _ := deciding.State()
				// The forger signs a false end of the history with its own key.
				m := f.forge(t, f.rogue, tenant, sandbox, protocol.SandboxDeleted)
				m.batch.Events[0].Sequence += 100
				signed := m.message()
				headers, payload := forge(tenant, sandbox,
					protocol.HeaderSignature+": "+signed.Header.Get(protocol.HeaderSignature))
				if strings.Contains(headers, protocol.HeaderSignature) {
					payload = string(signed.Data)
				}
				for range 8 {
					publish(protocol.AppendSubject(f.rogue.Name, tenant, sandbox), headers, payload)
				}

				must(t, deciding.Refresh(t.Context()))
				fresh := f.coordinator.journal(tenant, sandbox)
				must(t, fresh.Refresh(t.Context()))
				for who, j := range map[string]interface {
					State() (*protocol.State, uint64)
				}{"the coordinator": deciding, "a new reader": fresh} {
					after, _ := j.State()
					same(t, who+"'s state", seen(after), seen(before))
				}
				do(t, fresh, execAccepted("after"))
				do(t, working, protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "after", Boot: "b1"}})
				must(t, deciding.Refresh(t.Context()))
				decided, _ := deciding.State()
				worked, _ := working.State()
				same(t, "the coordinator's and the worker's states", decided, worked)
				state, batches := readHistory(t, f.coordinator.Conn, tenant, sandbox)
				if seen(state) != seen(worked) || len(batches) != 4+execs {
					t.Errorf("reading gives %d batches, %s; want %d, %s", len(batches), seen(state), 4+execs, seen(worked))
				}
			})
		}
	}
}
