package output

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// feed publishes the two streams of one command, each in order.
type feed struct {
	host    *Host
	key     protocol.SandboxKey
	name    string // ID of the exec, or protocol.PrimaryLog, or a protocol.ServiceLog
	streams [2]stream

	// rolling is set for the files of a container's own command, which keep only the last [control.PrimaryWindow]
	// bytes. Bytes that were overwritten before they were published are skipped, so the offsets have a gap. Such a feed
	// has one chunk in flight. The files of an exec keep all output, and are published with up to
	// [jetstream.OutputWindow] chunks in flight.
	rolling bool
}

// storedOn identifies the output of this feed that was published from the given hosts.
func (p *feed) storedOn(hosts []protocol.OutputHost) jetstream.OutputOf {
	return jetstream.OutputOf{Tenant: p.key.Tenant, Sandbox: p.key.ID, Log: p.name, Hosts: hosts}
}

// names are the names of the streams, in the order of feed.streams.
var names = [2]string{jetstream.Stdout, jetstream.Stderr}

// stream records how much of one stream was published.
type stream struct {
	base      int64 // offset, in the log, of the file's first byte
	published int64 // offset, in the file, of the first byte that the log has not acknowledged
	ended     bool  // nothing more can be read, even if the supervisor reported a larger size

	freeing
	hashing
}

// observer is told about the chunks of a feed, and can end publishing.
type observer interface {
	// mayContinue is called before each chunk, and twice a second while a chunk waits for its turn. An error ends
	// publishing.
	mayContinue() error
	// sent is called after a chunk was sent. An error ends publishing.
	sent() error
	// stored is called after the log acknowledged a chunk of a file. at is the chunk's offset in the file, and data is
	// the chunk's content.
	stored(f *os.File, s *stream, at int64, data []byte)
}

// retryPause is the pause before a retry after the log did not store output.
const retryPause = 500 * time.Millisecond

// publishFile publishes a stream up to the given size, with several chunks in flight, and counts the acknowledged
// bytes.
func (p *feed) publishFile(ctx context.Context, f *os.File, i int, size int64, o observer) (err error) {
	s := &p.streams[i]
	var sent chunks
	defer sent.abandon()
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	p.skipOverwritten(s, size)
	for at := s.published; at < size && !s.ended || len(sent.inFlight) > 0; {
		var next *turn
		var granted <-chan struct{}
		if at < size && !s.ended && len(sent.inFlight) < p.window() {
			if err := o.mayContinue(); err != nil {
				return err
			}
			next = p.host.turns.ask(p.key, min(size-at, jetstream.ChunkSize))
			granted = next.granted
		}
		for waits := true; waits; {
			select {
			case err := <-sent.oldest():
				if err != nil {
					next.done()
					return err
				}
				c := sent.settle()
				s.published = c.end()
				o.stored(f, s, c.at, c.data)
				waits = next != nil
			case <-granted:
				if at, err = p.send(f, i, &sent, next, at, size, o); err != nil {
					return err
				}
				waits = false
			case <-tick.C:
				if next == nil {
					continue
				}
				if err := o.mayContinue(); err != nil {
					next.done()
					return err
				}
			case <-ctx.Done():
				next.done()
				return ctx.Err()
			}
		}
	}
	return nil
}

// window returns how many chunks may be in flight. Readers rely on this limit.
func (p *feed) window() int {
	if p.rolling {
		return 1
	}
	return jetstream.OutputWindow
}

// skipOverwritten skips the bytes that were overwritten in a rolling file. The parameter size is the number of bytes
// that were ever written to the file.
func (p *feed) skipOverwritten(s *stream, size int64) {
	if p.rolling {
		s.published = max(s.published, size-control.PrimaryWindow)
	}
}

// send sends the chunk at an offset of the file, and returns the offset of the next chunk. The turn t must be granted.
// If the file cannot be read at this offset, send skips to size in a rolling file, and ends the stream otherwise.
func (p *feed) send(
	f *os.File, i int, inFlight *chunks, t *turn, at, size int64, o observer,
) (next int64, err error) {
	s := &p.streams[i]
	data := make([]byte, t.size)
	n, err := f.ReadAt(data, at)
	if n == 0 || err != nil && err != io.EOF { // the file is shorter than reported, or cannot be read
		t.done()
		if p.rolling {
			s.published = size
			return size, nil
		}
		s.ended = true
		return at, nil
	}
	stored, err := p.host.conn.PublishOutput(p.host.cfg.HostID, p.key.Tenant, p.key.ID, p.name,
		p.chunk(i, at, data[:n]))
	if err != nil {
		t.done()
		return at, err
	}
	inFlight.add(chunkInFlight{at, data[:n], stored, t})
	return at + int64(n), o.sent()
}

// chunk returns the chunk with the bytes at an offset of a stream. The chunk says how much of each stream the log has.
// The chunk's own bytes count only if no earlier chunk is in flight, because such a chunk may be lost.
func (p *feed) chunk(i int, at int64, data []byte) jetstream.Chunk {
	var next [2]int64
	for j, s := range p.streams {
		next[j] = s.base + s.published
	}
	if at == p.streams[i].published {
		next[i] += int64(len(data))
	}
	return jetstream.Chunk{
		Stream: names[i], Offset: p.streams[i].base + at, Data: data, NextStdout: next[0], NextStderr: next[1],
	}
}

// chunks are the chunks of one stream that are in flight, the oldest first.
type chunks struct {
	inFlight []chunkInFlight
}

type chunkInFlight struct {
	at     int64 // offset of the chunk's first byte
	data   []byte
	stored <-chan error
	turn   *turn
}

// end returns the offset of the first byte after the chunk.
func (c chunkInFlight) end() int64 { return c.at + int64(len(c.data)) }

func (c *chunks) add(sent chunkInFlight) { c.inFlight = append(c.inFlight, sent) }

// oldest returns the channel of the log's answer to the oldest chunk, or nil if no chunk is in flight.
func (c *chunks) oldest() <-chan error {
	if len(c.inFlight) == 0 {
		return nil
	}
	return c.inFlight[0].stored
}

// settle removes the oldest chunk, and returns it. Call settle after the log has answered this chunk.
func (c *chunks) settle() chunkInFlight {
	first := c.inFlight[0]
	c.inFlight[0] = chunkInFlight{} // so that the garbage collector can free the chunk's data
	c.inFlight = c.inFlight[1:]
	first.turn.done()
	return first
}

// abandon waits in the background for the answers to all chunks, and ends the turn of each chunk when its answer comes.
func (c *chunks) abandon() {
	if len(c.inFlight) == 0 {
		return
	}
	go func() {
		for len(c.inFlight) > 0 {
			<-c.oldest()
			c.settle()
		}
	}()
}
