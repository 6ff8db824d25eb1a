package jetstream_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// pages reads a stream of output page by page from an offset on, until a page is empty.
func pages(
	ctx context.Context,
	c *jetstream.Conn,
	tenant, exec, stream string,
	offset int64,
	limit int,
	total int64,
) (data []byte, missing int64, err error) {
	for {
		p, err := c.OutputPage(ctx, outputOf(tenant, "s", exec), stream, offset, limit, total)
		if err != nil {
			return nil, 0, err
		}
		if p.Offset != offset+p.Missing || p.Next != p.Offset+int64(len(p.Data)) || len(p.Data) > limit ||
			p.End < p.Next || p.Oldest > p.Offset {
			return nil, 0, fmt.Errorf(
				"inconsistent page from %d: %d bytes at %d, next %d, %d missing, %d to %d are stored",
				offset, len(p.Data), p.Offset, p.Next, p.Missing, p.Oldest, p.End)
		}
		if p.Next == offset {
			return data, missing, nil
		}
		data, missing, offset = append(data, p.Data...), missing+p.Missing, p.Next
	}
}

func publishInOrder(t *testing.T, c *jetstream.Conn, tenant, exec string, chunks ...jetstream.Chunk) {
	t.Helper()
	for _, k := range chunks {
		ack, err := c.PublishOutput(outputHost, tenant, "s", exec, k)
		must(t, err)
		must(t, receive(t, 15*time.Second, "the acknowledgement", ack))
	}
}

func TestOutputIsReadInPagesFromAnyOffset(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	const size, n = 1000, 150
	must(t, publishChunks(t, c, d.tenant, "s", "x", size, n))
	must(t, publishChunks(t, c, d.tenant, "s", "other", size, 3))
	var stdout, stderr []byte
	for i := range n {
		stdout = append(stdout, bytes.Repeat([]byte{byte('a' + i%26)}, size)...)
		stderr = append(stderr, byte(i))
	}
	for _, total := range []int64{-1, int64(len(stdout))} {
		limits := map[int64]int{
			0: 40_000, 1: 999, 999: 1, 1000: 100_000, 77_777: 7000, int64(len(stdout) - 1): 5, int64(len(stdout)): 5,
		}
		for offset, limit := range limits {
			if limit == 1 {
				p, err := c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, offset, limit, total)
				if err != nil || string(p.Data) != string(stdout[offset]) || p.Ended != (total >= 0) ||
					p.End != int64(len(stdout)) {
					t.Errorf("a page of one byte: %+v, %v", p, err)
				}
				continue
			}
			got, missing, err := pages(t.Context(), c, d.tenant, "x", jetstream.Stdout, offset, limit, total)
			if err != nil || !bytes.Equal(got, stdout[offset:]) || missing != 0 {
				t.Errorf("from %d in pages of %d, total %d: %d bytes, %v", offset, limit, total, len(got), err)
			}
		}
	}
	got, _, err := pages(t.Context(), c, d.tenant, "x", jetstream.Stderr, 3, 10, n)
	if err != nil || !bytes.Equal(got, stderr[3:]) {
		t.Errorf("stderr: %d bytes, %v", len(got), err)
	}
	end := int64(len(stdout))
	_, err = c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, end+1, 1, end)
	wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd)
	_, err = c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, 1<<40, 1, -1)
	wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd)
}

// Chunks that were sent again are stored after chunks that follow them, and some are stored twice.
func TestPagesOfOutputStoredOutOfOrder(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	chunk := func(at int64, data string, next int64) jetstream.Chunk {
		return jetstream.Chunk{Stream: jetstream.Stdout, Offset: at, Data: []byte(data), NextStdout: next}
	}
	const text = "0123456789abcdefghij"
	in := []jetstream.Chunk{
		chunk(0, text[:4], 4),
		chunk(8, text[8:12], 4),
		chunk(12, text[12:16], 4),
		chunk(4, text[4:8], 8),
		chunk(8, text[8:12], 12),
		chunk(12, text[12:16], 16),
		chunk(16, text[16:], 20),
	}
	publishInOrder(t, c, d.tenant, "x", in...)
	for offset := range int64(len(text)) {
		for limit := 1; limit < 9; limit += 3 {
			got, missing, err := pages(t.Context(), c, d.tenant, "x", jetstream.Stdout, offset, limit, int64(len(text)))
			if err != nil || string(got) != text[offset:] || missing != 0 {
				t.Errorf("from %d in pages of %d: %q, %d missing, %v", offset, limit, got, missing, err)
			}
		}
	}
	// While a chunk is in flight, the page ends before the chunk and skips no output.
	publishInOrder(t, c, d.tenant, "y", in[:2]...)
	got, missing, err := pages(t.Context(), c, d.tenant, "y", jetstream.Stdout, 0, 100, -1)
	if err != nil || string(got) != text[:4] || missing != 0 {
		t.Errorf("before the gap: %q, %d missing, %v", got, missing, err)
	}
	publishInOrder(t, c, d.tenant, "y", in[3:5]...) // the missing chunk, and again the chunks after it
	got, _, err = pages(t.Context(), c, d.tenant, "y", jetstream.Stdout, 4, 100, -1)
	if err != nil || string(got) != text[4:12] {
		t.Errorf("after the gap: %q, %v", got, err)
	}
}

// Another exec printed so much that the server removed all output of this exec. Readers of this exec's output keep
// waiting for more.
func TestAReaderOfRemovedOutputKeepsWaiting(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	const at = 64 << 20
	chunk := jetstream.Chunk{Stream: jetstream.Stdout, Offset: at, Data: []byte("0123456789"), NextStdout: at + 10}
	publishInOrder(t, c, d.tenant, "x", chunk)
	room, err := c.OutputRoom(t.Context())
	must(t, err)
	must(t, c.PurgeOutput(t.Context(), d.tenant, "s", room.Last))
	p, err := c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, at+10, 100, -1)
	if err != nil || p.Next != at+10 || p.Missing != 0 || len(p.Data) != 0 || p.Ended {
		t.Errorf("the page without stored output: %+v, %v", p, err)
	}
	chunk.Offset, chunk.NextStdout = at+10, at+20
	publishInOrder(t, c, d.tenant, "x", chunk)
	p, err = c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, at+10, 100, -1)
	if err != nil || string(p.Data) != "0123456789" {
		t.Errorf("the page with later output: %+v, %v", p, err)
	}
}

func TestAPageOfOutputReportsMissingBytes(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	must(t, publishChunks(t, c, d.tenant, "s", "x", 100, 10))
	p, err := c.OutputPage(t.Context(), outputOf(d.tenant, "s", "none"), jetstream.Stdout, 5, 10, 700)
	if err != nil || p.Missing != 695 || p.Next != 700 || p.Oldest != 700 || len(p.Data) != 0 || !p.Ended {
		t.Errorf("the page without stored output: %+v, %v", p, err)
	}
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), protocol.StreamLogs)
	must(t, err)
	subject := natsjs.WithPurgeSubject(protocol.OutputSubject(outputHost, d.tenant, "s", "x"))
	must(t, stream.Purge(t.Context(), subject, natsjs.WithPurgeSequence(8))) // removes stdout up to offset 400
	p, err = c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, 30, 1000, 1000)
	if err != nil || p.Missing != 370 || p.Offset != 400 || len(p.Data) != 600 || p.Oldest != 400 {
		t.Errorf("without the beginning: %d bytes, %+v, %v", len(p.Data), p, err)
	}
	for seq := uint64(13); seq <= 16; seq++ { // removes stdout between the offsets 600 and 800
		must(t, stream.DeleteMsg(t.Context(), seq))
	}
	got, missing, err := pages(t.Context(), c, d.tenant, "x", jetstream.Stdout, 450, 70, 1000)
	if err != nil || missing != 200 || len(got) != 350 {
		t.Errorf("over a gap: %d bytes, %d missing, %v", len(got), missing, err)
	}
	for seq := uint64(17); seq <= 20; seq++ {
		must(t, stream.DeleteMsg(t.Context(), seq))
	}
	got, missing, err = pages(t.Context(), c, d.tenant, "x", jetstream.Stdout, 450, 70, 1000)
	if err != nil || missing != 400 || len(got) != 150 {
		t.Errorf("without the end: %d bytes, %d missing, %v", len(got), missing, err)
	}
}

// The cost of a page depends on its own length, not on its offset.
func TestAPageOfOutputDoesNotReadEarlierOutput(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	const size, n = 64 << 10, 100
	must(t, publishChunks(t, c, d.tenant, "s", "x", size, n))
	before := c.Received()
	for _, offset := range []int64{0, 50 * size, 99 * size, 100 * size} {
		_, err := c.OutputPage(t.Context(), outputOf(d.tenant, "s", "x"), jetstream.Stdout, offset, 1000, 100*size)
		must(t, err)
	}
	if got := c.Received() - before; got > 4<<20 {
		t.Errorf("the server sent %d bytes for 4 pages of at most 1000 bytes", got)
	}
}
