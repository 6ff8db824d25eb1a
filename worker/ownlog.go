package worker

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// ownLog publishes what a container's own command prints, as the output of an exec is, under a name that
// no exec has: the service's, or that of the primary command. On disk are the last
// [control.PrimaryWindow] bytes of each stream; what was overrun before it could be published is left
// out, which the offsets show.
type ownLog struct {
	s          *sandbox
	name       string // protocol.PrimaryLog, or a protocol.ServiceLog
	generation uint64
	directory  func() directory
	more       chan struct{} // has room for one

	mu   sync.Mutex
	size [2]int64 // that the supervisor announced, of stdout and stderr

	// Only run's own, and rest's afterwards.
	known     bool     // what was published before
	earlier   [2]int64 // what the command had printed on other hosts, before it came to this one
	published [2]int64 // of what it printed here
}

var ownStreams = [2]string{jetstream.Stdout, jetstream.Stderr}

// Published at most once in so long; longer after a lot, so that a command that prints without end
// leaves room for everybody else's output.
const (
	publishPeriod = 100 * time.Millisecond
	publishLots   = 256 << 10
	publishRest   = 2 * time.Second // also how long the last of it may take
	restLooks     = 10 * time.Millisecond
)

func newOwnLog(s *sandbox, name string, generation uint64, in func() directory) *ownLog {
	return &ownLog{s: s, name: name, generation: generation, directory: in, more: make(chan struct{}, 1)}
}

func (l *ownLog) grown(stdout, stderr int64) {
	l.mu.Lock()
	l.size = [2]int64{max(l.size[0], stdout), max(l.size[1], stderr)}
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *ownLog) sizes() [2]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// run publishes until ctx ends.
func (l *ownLog) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.more:
		}
		n, err := l.catchUp(ctx)
		pause := publishPeriod
		if err != nil && ctx.Err() == nil {
			l.s.log.Warn("output of a container's own command is published again later", "log", l.name, "error", err)
			l.grown(0, 0)
			pause = retryMost
		} else if n > publishLots {
			pause = publishRest
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// rest publishes, for a while, what the command printed until it was ended. Its supervisor says that it
// was, after how much that is: runs says whether that is still to come. run must have ended.
func (l *ownLog) rest(ctx context.Context, runs func() bool) {
	ctx, cancel := context.WithTimeout(ctx, publishRest)
	defer cancel()
	for runs() && sleep(ctx, restLooks) {
	}
	if l.known && l.published == l.sizes() || l.sizes() == [2]int64{} {
		return
	}
	if _, err := l.catchUp(ctx); err != nil {
		l.s.log.Warn("the last output of a container's own command is not published", "log", l.name, "error", err)
	}
}

// catchUp publishes what is there and was not published yet, and says how much that was.
func (l *ownLog) catchUp(ctx context.Context) (n int64, err error) {
	if !l.known {
		if err := l.begin(ctx); err != nil {
			return 0, err
		}
		l.known = true
	}
	before := l.published
	err = l.publish(ctx)
	return l.published[0] - before[0] + l.published[1] - before[1], err
}

// begin learns from the log what was published before.
func (l *ownLog) begin(ctx context.Context) (err error) {
	var end [2]int64
	if end[0], end[1], err = l.s.w.conn.OutputEnd(ctx, l.s.key.Tenant, l.s.key.ID, l.name); err != nil {
		return err
	}
	if l.generation > 1 {
		l.earlier, err = l.directory().earlierOutput(end)
	}
	for i := range end {
		l.published[i] = max(0, end[i]-l.earlier[i])
	}
	return err
}

// publish publishes what is there and was not published yet.
func (l *ownLog) publish(ctx context.Context) error {
	run, err := os.OpenRoot(l.directory().run())
	if err != nil {
		return nil // the directory is gone
	}
	defer run.Close()
	for i, size := range l.sizes() {
		for l.published[i] < size && ctx.Err() == nil {
			data := readPrimary(run, ownStreams[i], max(l.published[i], size-control.PrimaryWindow), size)
			if len(data.bytes) == 0 {
				l.published[i] = size // the container took it away
				break
			}
			next := l.published
			next[i] = data.from + int64(len(data.bytes))
			k := jetstream.Chunk{
				Stream: ownStreams[i], Offset: l.earlier[i] + data.from, Data: data.bytes,
				NextStdout: l.earlier[0] + next[0], NextStderr: l.earlier[1] + next[1],
			}
			if err := l.send(ctx, k); err != nil {
				return err
			}
			l.published = next
		}
	}
	return ctx.Err()
}

// send publishes a chunk when its turn comes.
func (l *ownLog) send(ctx context.Context, k jetstream.Chunk) error {
	t, err := l.s.w.outlet.take(ctx, l.s.key, int64(len(k.Data)))
	if err != nil {
		return err
	}
	defer t.done()
	stored, err := l.s.w.conn.PublishOutput(l.s.key.Tenant, l.s.key.ID, l.name, k)
	if err != nil {
		return err
	}
	select {
	case err := <-stored:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// last is the end of the output.
func (l *ownLog) last() []byte {
	run, err := os.OpenRoot(l.directory().run())
	if err != nil {
		return nil
	}
	defer run.Close()
	var all []byte
	for i, size := range l.sizes() {
		all = append(all, readPrimary(run, ownStreams[i], max(0, size-protocol.MaxLastOutput), size).bytes...)
	}
	return lastOf(all)
}

// piece is some output and where it begins.
type piece struct {
	from  int64
	bytes []byte
}

// readPrimary reads a part of a stream of a container's own command, at most a chunk. The file is the
// container's word: no more is read than the supervisor announced.
func readPrimary(run *os.Root, stream string, from, until int64) piece {
	f, err := supervise.OpenPrimary(run, stream)
	if err != nil || until <= from {
		return piece{from: from}
	}
	defer f.Close()
	data := make([]byte, min(until-from, jetstream.ChunkSize))
	n, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		n = 0
	}
	return piece{from, data[:n]}
}

// readEnd is the end of a file of this size, as much as an event carries.
func readEnd(f *os.File, size int64) []byte {
	from := max(0, size-protocol.MaxLastOutput)
	data := make([]byte, size-from)
	n, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return nil
	}
	return data[:n]
}
