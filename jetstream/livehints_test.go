package jetstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// liveBatches returns a channel of the live batches of a sandbox, until the test ends.
func liveBatches(t *testing.T, c *jetstream.Conn, tenant, sandbox string) <-chan *protocol.Batch {
	t.Helper()
	heard := make(chan *protocol.Batch, 10)
	stop, err := c.Live(tenant, sandbox, func(b *protocol.Batch) { heard <- b })
	must(t, err)
	t.Cleanup(stop)
	return heard
}

// The server stores the headers of a publisher unchanged, and appends its own headers when it republishes the message.
// A publisher can set headers with the same names first, or hide the server's headers behind an empty line.
func TestALiveBatchWhoseRecordIsForgedIsOnlyAHint(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, nc := d.opened(t), d.raw(t)
		readySandbox(t, c, d.tenant, "s1")
		heard := liveBatches(t, c, d.tenant, "s1")
		must(t, c.Flush(t.Context()))
		must(t, nc.Flush())

		before, err := c.LastRecord(t.Context())
		must(t, err)
		j := journal(c, d.tenant, "s1", "k1")
		_, err = j.Do(t.Context(), acceptExec("x1"))
		must(t, err)
		b := receive(t, 5*time.Second, "the live batch", heard)
		if b.Record <= before || b.Proof.After == 0 || b.Proof.After >= b.Record {
			t.Fatalf("a batch of a journal arrives with record %d after %d, want one above %d", b.Record, b.Proof.After,
				before)
		}

		publish := rawPublisher(t, d.url())
		all := fmt.Sprintf("Nats-Stream: %s\r\nNats-Subject: %s\r\nNats-Sequence: 1000\r\nNats-Last-Sequence: 1\r\n",
			protocol.StreamEvents, protocol.EventSubject(d.tenant, "s1"))
		for name, headers := range map[string]string{
			"a sequence":                  "Nats-Sequence: 1000\r\n\r\n",
			"another stream":              "Nats-Stream: X\r\n\r\n",
			"another subject":             "Nats-Subject: X\r\n\r\n",
			"another record before":       "Nats-Last-Sequence: 1\r\n\r\n",
			"all of them, and no others":  all + "\r\n\r\n",
			"nothing":                     "\r\n\r\n",
			"all of them, and many more":  strings.Repeat("A:\n", 200) + all + "\r\n\r\n",
			"a few lines without a space": strings.Repeat("A:\n", 19) + all + "\r\n\r\n",
			"no headers that are decoded": "A\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				publish(protocol.AppendSubject("evil", d.tenant, "s1"), "NATS/1.0\r\n"+headers,
					string(accepted(d.tenant, "s1", "evil").Encode()))
				b := receive(t, 5*time.Second, "the hint", heard)
				if b.Writer != "evil" || b.Record != 0 || b.Proof.After != 0 || b.Events[0].Record != 0 {
					t.Errorf("a batch of %s arrives with record %d after %d, want a hint", b.Writer, b.Record, b.Proof.After)
				}
			})
		}
	})
}
