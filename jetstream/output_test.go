package jetstream_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// outputHost is the host from which tests publish output.
const outputHost = "HOSTA"

// outputOf names output that was published from the test's host.
func outputOf(tenant, sandbox, log string) jetstream.OutputOf {
	return jetstream.OutputOf{Tenant: tenant, Sandbox: sandbox, Log: log, Hosts: outputHosts}
}

var outputHosts = []protocol.OutputHost{{ID: outputHost}}

// hostsOfAll says that every sandbox is on the test's host.
func hostsOfAll(context.Context, string, string) ([]protocol.OutputHost, error) {
	return outputHosts, nil
}

// publishChunks sends n chunks of stdout, each followed by a chunk of stderr, and waits for their acknowledgements.
func publishChunks(t testing.TB, c *jetstream.Conn, tenant, sandbox, exec string, size, n int) error {
	t.Helper()
	var acks []<-chan error
	k := jetstream.Chunk{}
	send := func(stream string, data []byte) error {
		k.Stream, k.Data, k.Offset = stream, data, k.NextStdout
		if stream == jetstream.Stderr {
			k.Offset = k.NextStderr
			k.NextStderr += int64(len(data))
		} else {
			k.NextStdout += int64(len(data))
		}
		ack, err := c.PublishOutput(outputHost, tenant, sandbox, exec, k)
		acks = append(acks, ack)
		return err
	}
	for i := range n {
		if err := send(jetstream.Stdout, bytes.Repeat([]byte{byte('a' + i%26)}, size)); err != nil {
			return err
		}
		if err := send(jetstream.Stderr, []byte{byte(i)}); err != nil {
			return err
		}
	}
	for _, ack := range acks {
		if err := receive(t, 15*time.Second, "the acknowledgement", ack); err != nil {
			return err
		}
	}
	return nil
}

// reader concatenates chunks, and fails on a chunk that does not follow the previous chunk.
type reader struct {
	stdout, stderr bytes.Buffer
	chunks         int
}

func (r *reader) add(k jetstream.Chunk) error {
	buf := &r.stdout
	if k.Stream == jetstream.Stderr {
		buf = &r.stderr
	}
	if k.Offset != int64(buf.Len()) {
		return fmt.Errorf("chunk %d of %s begins at %d, want %d", r.chunks, k.Stream, k.Offset, buf.Len())
	}
	buf.Write(k.Data)
	r.chunks++
	return nil
}

func TestOutputIsReadAsItWasWritten(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		const chunks, size = 25, 200 << 10 // 5 MB
		var live reader
		heard := make(chan error, 2*chunks)
		listener, other := d.opened(t), d.opened(t)
		stop, err := listener.LiveOutput(d.tenant, "s1", "x1", func(_ string, k jetstream.Chunk) { heard <- live.add(k) })
		must(t, err)
		defer stop()
		// The server of this connection handles a subscription before later requests of the same connection. Other
		// servers receive the subscription later.
		probes := make(chan jetstream.Chunk, 1000)
		stopProbes, err := listener.LiveOutput(d.tenant, "s1", "probe", func(_ string, k jetstream.Chunk) { probes <- k })
		must(t, err)
		defer stopProbes()
		must(t, listener.Flush(ctx))
		eventually.Holds(t, 5*time.Second, "every server knows the subscriptions", func() bool {
			must(t, publishChunks(t, c, d.tenant, "s1", "probe", 1, 1))
			return len(probes) > 0
		})
		must(t, publishChunks(t, c, d.tenant, "s1", "x1", size, chunks))
		must(t, publishChunks(t, c, d.tenant, "s1", "x2", 1, 1)) // output of another exec
		stdout, stderr, err := other.OutputEnd(ctx, outputOf(d.tenant, "s1", "x1"))
		if stdout != chunks*size || stderr != chunks || err != nil {
			t.Fatalf("the output ends at %d and %d, %v", stdout, stderr, err)
		}
		var read reader
		eventually.Holds(t, 5*time.Second, "all output is read", func() bool { // a replica may be behind
			read = reader{}
			_, err := other.ReadOutput(ctx, outputOf(d.tenant, "s1", "x1"), 0, read.add)
			must(t, err)
			return read.chunks == 2*chunks
		})
		for range 2 * chunks {
			must(t, receive(t, 5*time.Second, "the live output", heard))
		}
		if !bytes.Equal(read.stdout.Bytes(), live.stdout.Bytes()) || read.stdout.Len() != chunks*size ||
			read.stderr.Len() != chunks {
			t.Fatalf("%d bytes of stdout and %d of stderr were read, and %d of stdout received live",
				read.stdout.Len(), read.stderr.Len(), live.stdout.Len())
		}
		// A reader that stops at a chunk can read the rest later: both reads together return each chunk once.
		var rest reader
		next := uint64(0)
		seen := 0
		stopped := fmt.Errorf("enough")
		next, err = other.ReadOutput(ctx, outputOf(d.tenant, "s1", "x1"), 0, func(k jetstream.Chunk) error {
			if seen++; seen > 10 {
				return stopped
			}
			return rest.add(k)
		})
		if err != stopped {
			t.Fatal(err)
		}
		// next is the record after the last visited chunk. That chunk was not added, so the second read begins with it.
		_, err = other.ReadOutput(ctx, outputOf(d.tenant, "s1", "x1"), next-1, rest.add)
		must(t, err)
		if rest.chunks != 2*chunks {
			t.Fatalf("two reads returned %d chunks, want %d", rest.chunks, 2*chunks)
		}
	})
}

func TestAnExecWithoutOutputEndsAtZero(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		stdout, stderr, err := c.OutputEnd(t.Context(), outputOf(d.tenant, "s1", "none"))
		if stdout != 0 || stderr != 0 || err != nil {
			t.Fatal(stdout, stderr, err)
		}
		if next, err := c.ReadOutput(t.Context(), outputOf(d.tenant, "s1", "none"), 7, nil); next != 7 || err != nil {
			t.Fatal(next, err)
		}
	})
}

// A batched read returns more messages than a subscription buffers by default.
func TestMuchMoreOutputThanASubscriptionHoldsIsRead(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	const chunks = 320 // of 256 KiB: 80 MiB
	must(t, publishChunks(t, c, d.tenant, "s1", "x1", jetstream.ChunkSize, chunks))
	var total int
	_, err := c.ReadOutput(t.Context(), outputOf(d.tenant, "s1", "x1"), 0, func(k jetstream.Chunk) error {
		if total == 0 {
			// The first batch arrives completely while no chunk is read.
			must(t, c.Flush(t.Context()))
		}
		total += len(k.Data)
		return nil
	})
	must(t, err)
	if total != chunks*(jetstream.ChunkSize+1) {
		t.Fatalf("read %d bytes, want %d", total, chunks*(jetstream.ChunkSize+1))
	}
}

func TestAChunkWithoutItsOffsetsIsRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	_, err := d.raw(t).Request(protocol.OutputSubject(outputHost, d.tenant, "s1", "x1"), []byte("x"), 5*time.Second)
	must(t, err)
	_, err = d.opened(t).ReadOutput(t.Context(), outputOf(d.tenant, "s1", "x1"), 0,
		func(jetstream.Chunk) error { return nil })
	wantError(t, err, protocol.Internal, protocol.ReasonUndecodable)
}
