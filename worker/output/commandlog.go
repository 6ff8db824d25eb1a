package output

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// CommandLog publishes the output of a container's own command, under a name that no exec has. The files that it reads
// keep only the last control.PrimaryWindow bytes of each stream.
type CommandLog struct {
	feed
	cfg  CommandLogConfig
	more chan struct{} // wakes Run; holds at most one signal

	mu    sync.Mutex
	sizes [2]int64 // sizes of stdout and stderr, as the supervisor reported

	known bool // begin has succeeded; used by Run, and by Finish after Run has returned
}

// CommandLogConfig describes a container's command. All fields but Earlier are required.
type CommandLogConfig struct {
	Key    protocol.SandboxKey
	Name   string        // protocol.PrimaryLog, or a protocol.ServiceLog
	RunDir func() string // path of the container's run directory

	// Hosts returns the hosts that the sandbox was and is on.
	Hosts func() []protocol.OutputHost

	// Earlier returns how many bytes of each stream the command printed on earlier hosts. The argument is how many
	// bytes of each stream the log has now. A nil Earlier means that the command ran on no other host.
	Earlier func(end [2]int64) ([2]int64, error)
	Logger  *slog.Logger
}

// The pause after a round of publishing is commandPeriod. After a round of more than muchOutput bytes, the pause is
// FinishWithin, so that a command that never stops printing leaves time for the output of other commands.
const (
	commandPeriod = 100 * time.Millisecond
	muchOutput    = 256 << 10
	commandRetry  = 5 * time.Second // pause after a round that failed

	// FinishWithin limits how long publishing the last output of a command may take.
	FinishWithin = 2 * time.Second
	// FinishPoll is the pause between two checks for the report that the command has ended.
	FinishPoll = 10 * time.Millisecond
)

// NewCommandLog returns the publisher of a command's output.
func (h *Host) NewCommandLog(cfg CommandLogConfig) *CommandLog {
	l := &CommandLog{feed: feed{host: h, key: cfg.Key, name: cfg.Name, rolling: true}, cfg: cfg}
	l.more = make(chan struct{}, 1)
	return l
}

// Grow records how many bytes the command has printed so far, and wakes Run. A recorded size never shrinks.
func (l *CommandLog) Grow(stdout, stderr int64) {
	l.mu.Lock()
	l.sizes = [2]int64{max(l.sizes[0], stdout), max(l.sizes[1], stderr)}
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *CommandLog) printed() [2]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sizes
}

// Run publishes the command's output until ctx ends.
func (l *CommandLog) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.more:
		}
		n, err := l.catchUp(ctx)
		pause := commandPeriod
		if err != nil && ctx.Err() == nil {
			l.cfg.Logger.Warn("could not publish the output of a container's own command; retrying",
				"log", l.name, "error", err)
			l.Grow(0, 0)
			pause = commandRetry
		} else if n > muchOutput {
			pause = FinishWithin
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// Finish publishes the last output of the command, within [FinishWithin]. The supervisor reports the final sizes before
// it reports the end of the command, so Finish first waits until runs() returns false. Run must have returned.
func (l *CommandLog) Finish(ctx context.Context, runs func() bool) {
	ctx, cancel := context.WithTimeout(ctx, FinishWithin)
	defer cancel()
	for runs() && backoff.Sleep(ctx, FinishPoll) {
	}
	if l.known && l.published() == l.printed() || l.printed() == [2]int64{} {
		return
	}
	if _, err := l.catchUp(ctx); err != nil {
		l.cfg.Logger.Warn("could not publish the last output of a container's own command", "log", l.name, "error", err)
	}
}

// published returns how many bytes of each file were published.
func (l *CommandLog) published() [2]int64 {
	return [2]int64{l.streams[0].published, l.streams[1].published}
}

// catchUp publishes the new output, and returns how many bytes it published.
func (l *CommandLog) catchUp(ctx context.Context) (n int64, err error) {
	if !l.known {
		if err := l.begin(ctx); err != nil {
			return 0, err
		}
		l.known = true
	}
	before := l.published()
	err = l.publish(ctx)
	after := l.published()
	return after[0] - before[0] + after[1] - before[1], err
}

// begin reads from the log how much of the output an earlier worker has published.
func (l *CommandLog) begin(ctx context.Context) (err error) {
	var end, earlier [2]int64
	if end[0], end[1], err = l.host.conn.OutputEnd(ctx, l.storedOn(l.cfg.Hosts())); err != nil {
		return err
	}
	if l.cfg.Earlier != nil {
		if earlier, err = l.cfg.Earlier(end); err != nil {
			return err
		}
	}
	for i := range end {
		l.streams[i].base, l.streams[i].published = earlier[i], max(0, end[i]-earlier[i])
	}
	return nil
}

func (l *CommandLog) publish(ctx context.Context) error {
	run, err := os.OpenRoot(l.cfg.RunDir())
	if err != nil {
		return nil // the directory was removed
	}
	defer run.Close()
	for i, size := range l.printed() {
		if l.streams[i].published >= size {
			continue
		}
		f, err := supervise.OpenPrimary(run, names[i])
		if err != nil { // the file is missing, or is not a regular file
			l.streams[i].published = size
			continue
		}
		err = l.publishFile(ctx, f, i, size, l)
		f.Close()
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *CommandLog) mayContinue() error                      { return nil }
func (l *CommandLog) sent() error                             { return nil }
func (l *CommandLog) stored(*os.File, *stream, int64, []byte) {}

// Last returns the last part of the command's output, at most protocol.MaxLastOutput bytes.
func (l *CommandLog) Last() []byte {
	run, err := os.OpenRoot(l.cfg.RunDir())
	if err != nil {
		return nil
	}
	defer run.Close()
	var all []byte
	for i, size := range l.printed() {
		f, err := supervise.OpenPrimary(run, names[i])
		if err != nil {
			continue
		}
		all = append(all, ReadEnd(f, size)...)
		f.Close()
	}
	return End(all)
}

// ReadEnd returns the last part of a file of this size, at most protocol.MaxLastOutput bytes.
func ReadEnd(f *os.File, size int64) []byte {
	from := max(0, size-protocol.MaxLastOutput)
	data := make([]byte, size-from)
	n, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return nil
	}
	return data[:n]
}

// End returns the last part of some output, at most protocol.MaxLastOutput bytes.
func End(output []byte) []byte { return output[max(0, len(output)-protocol.MaxLastOutput):] }
