package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// DefaultGroupBase is the first of the group ids by which the processes of execs are found. It is far above the group
// ids that images use. No user in the sandbox may be in this group or in a group with a higher id.
const DefaultGroupBase = 1_500_000_000

// Config configures the supervisor.
type Config struct {
	ControlDir string // the directory with the worker's socket
	GroupBase  uint32 // default DefaultGroupBase; must differ between supervisors that share a process table
	Privileged bool   // execs that run as root keep the container's capabilities
	Logger     *slog.Logger
}

func (c *Config) validate() error {
	if c.ControlDir == "" {
		return errors.New("supervisor: the control directory must be set")
	}
	if c.GroupBase == 0 {
		c.GroupBase = DefaultGroupBase
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// supervisor is the state of PID 1.
type supervisor struct {
	config   Config
	boot     string
	started  time.Time
	reaper   *reaper
	trees    *trees
	oom      *oomCounter
	launcher *launcher
	primary  *primary
	files    slots
	secrets  secrets

	heldInput atomic.Int64 // bytes of stdin that wait for processes to read
	listing   atomic.Bool  // the processes are being listed

	quiet *time.Timer // returns memory to the kernel some time after the last exec ended

	mu       sync.Mutex
	welcome  *control.Welcome // nil until the first Welcome arrives
	execs    map[string]*exec
	helpers  int            // number of helpers that run or start
	numbers  startedNumbers // the numbers of accepted starts
	stopping bool
	outbox   *outbox // queue of the current connection; nil while there is no connection
}

// Run runs the supervisor, normally as PID 1. It serves the worker until a TERM or INT signal or the end of ctx. Then
// it ends every process and returns nil. Run confines the calling process irrevocably, see confine, so the process must
// do nothing else. The process must run as root with CAP_KILL, CAP_SETGID, CAP_SETUID and CAP_SETPCAP.
func Run(ctx context.Context, config Config) error {
	if err := config.validate(); err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(64 << 20)
	reserveThreads(reservedThreads)
	if err := confine(config.Privileged); err != nil {
		return err
	}
	if err := takeAway(); err != nil {
		return err
	}
	if err := limit(); err != nil {
		return err
	}
	s, err := newSupervisor(config)
	if err != nil {
		return err
	}
	go s.reaper.run()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var served sync.WaitGroup
	served.Go(func() { s.serve(ctx) })
	s.handleSignals(ctx)
	s.shutdown()
	cancel()
	served.Wait()
	return nil
}

func newSupervisor(config Config) (*supervisor, error) {
	s := &supervisor{
		config:  config,
		boot:    newBoot(),
		started: time.Now(),
		reaper:  newReaper(),
		trees:   &trees{base: config.GroupBase, self: os.Getpid()},
		oom:     openOOMCounter(),
		files:   make(slots, fileSlots),
		execs:   map[string]*exec{},
		secrets: openSecrets(protocol.SecretsDir),
	}
	s.reaper.score = openOOMScore()
	if config.Privileged {
		s.trees.mains = s.reaper.groups
	}
	s.quiet = time.AfterFunc(quietAfter, func() {
		// The first collection only marks the buffers in pools as unused; the second one frees them.
		debug.FreeOSMemory()
		debug.FreeOSMemory()
	})
	var err error
	if s.launcher, err = newLauncher(config.GroupBase, s.reaper); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	s.primary = newPrimary(s)
	if os.Getpid() != 1 {
		// Outside of a container, orphans would become children of another process.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("supervisor: become a subreaper: %w", err)
		}
	}
	return s, nil
}

func newBoot() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// greet handles the Welcome of a connection, with the files that came with the Welcome. The first Welcome of this boot
// brings the container's secrets, and starts the primary command. greet returns an error if it did not accept the
// Welcome. Only one goroutine at a time calls greet.
func (s *supervisor) greet(c *control.Command, files []int, box *outbox) error {
	w := c.Welcome
	s.mu.Lock()
	first := s.welcome == nil
	s.mu.Unlock()
	if first && late(c.Until) {
		closeFiles(files)
		return errors.New("the worker's Welcome arrived after the end of the worker's lease")
	}
	if len(w.Secrets) > 0 {
		var err error
		if first {
			err = s.takeSecrets(w)
		}
		w.Secrets = nil
		box.put(&control.Notice{Reply: &control.Reply{Seq: c.Seq, Error: protocol.AsError(err)}})
		if err != nil {
			closeFiles(files)
			box.flush(flushBound)
			return err
		}
	}
	s.mu.Lock()
	s.welcome = w
	s.mu.Unlock()
	if !first || len(w.Command) == 0 {
		closeFiles(files)
		return nil
	}
	s.primary.begin(w, files)
	return nil
}

// attach puts the Hello into the outbox of a new connection, and makes that outbox the destination of all notices. It
// holds the lock until both are done, so every change that is missing from the Hello is reported by a later notice.
func (s *supervisor) attach(box *outbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hello := control.Hello{
		Version:      control.Version,
		Boot:         s.boot,
		Pid:          os.Getpid(),
		Started:      s.started,
		Primary:      s.primary.status(),
		TakesFiles:   true,
		TakesSecrets: true,
		TakesHelp:    true,
		TakesInput:   true,
		Welcomed:     s.welcome != nil,
	}
	for _, e := range s.execs {
		if status, begun := e.status(); begun {
			hello.Execs = append(hello.Execs, status)
		}
		if len(hello.Execs) == execsPerHello {
			page := hello
			page.More = true
			box.put(&control.Notice{Hello: &page})
			hello.Execs = nil
		}
	}
	box.put(&control.Notice{Hello: &hello})
	s.outbox = box
}

// execsPerHello is the maximum number of execs in one frame of a Hello. A status has at most about 1,500 bytes, so the
// frame is far below control.MaxNotice.
const execsPerHello = 256

func (s *supervisor) detach(box *outbox) {
	s.mu.Lock()
	gone := s.outbox == box
	if gone {
		s.outbox = nil
	}
	s.mu.Unlock()
	if gone {
		s.recordAll() // the worker may not have received all results, and the next worker must find them
	}
}

// tell sends a notice if a worker is connected. Otherwise the next Hello will have the same information.
func (s *supervisor) tell(n *control.Notice) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.put(n)
	}
}

// tellOutput queues a notice with the sizes of an exec's output. The sizes are read when the notice is written.
func (s *supervisor) tellOutput(e *exec) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.putOutput(e)
	}
}

// accept creates the exec of a Start, or returns the exec if it already exists. A created exec has taken over the
// files. Otherwise the files still belong to the caller.
func (s *supervisor) accept(start *control.Start, files execFiles) (e *exec, created bool, refused *protocol.Error) {
	if err := protocol.ValidateID("exec_id", start.ID); err != nil {
		return nil, false, protocol.AsError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[start.ID]; e != nil {
		return e, false, nil
	}
	switch {
	case start.OnlyKnown:
		return nil, false, unknownExec(start.ID)
	case start.Boot != "" && start.Boot != s.boot:
		return nil, false, anotherBoot(start.ID)
	case s.stopping:
		return nil, false, protocol.Errorf(
			protocol.FailedPrecondition,
			protocol.ReasonSandboxStopping,
			"the sandbox is stopping",
		)
	case len(s.execs) >= control.MaxExecs:
		return nil, false, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonQueueFull,
			"the sandbox's supervisor already has %d execs that run or are not forgotten yet", control.MaxExecs)
	case start.Number != 0 && !s.numbers.take(start.Number):
		return nil, false, startedBefore(start.ID)
	}
	e = newExec(s, start, files, s.welcome)
	s.execs[start.ID] = e
	return e, true, nil
}

func (s *supervisor) exec(id string) *exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.execs[id]
}

func (s *supervisor) drop(e *exec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.execs[e.id] == e {
		delete(s.execs, e.id)
	}
}

// forget drops ended execs. The worker removes the execs' files.
func (s *supervisor) forget(ids []string) {
	for _, id := range ids {
		e := s.exec(id)
		if e == nil || !e.hasEnded() {
			continue
		}
		e.closeRecord(nil)
		s.drop(e)
	}
}

// stopAll ends every exec, the primary command, and the processes that ended execs have left behind. The parameter
// primaryGrace is the grace period of the primary command, and the parameter grace is that of all other processes.
// stopAll returns when all these processes are gone.
func (s *supervisor) stopAll(grace, primaryGrace time.Duration) {
	s.mu.Lock()
	s.stopping = true
	running := make([]*exec, 0, len(s.execs))
	for _, e := range s.execs {
		running = append(running, e)
	}
	s.mu.Unlock()

	var ending sync.WaitGroup
	ending.Go(func() { s.primary.stop(primaryGrace) })
	owned := map[uint32]bool{s.primary.group: true}
	for _, e := range running {
		if e.stop(cancelled, grace) {
			owned[e.group] = true
			ending.Go(func() { <-e.ended })
		}
	}
	deadline := time.Now().Add(grace)
	ending.Go(func() {
		s.trees.end(func(group uint32) bool { return !owned[group] },
			func() time.Time { return deadline }, nil)
	})
	ending.Wait()
	s.recordAll()
}

// shutdown ends all execs at once, and the primary command within its grace period. It waits until the results are sent
// to a connected worker, but not longer than flushBound.
func (s *supervisor) shutdown() {
	s.mu.Lock()
	var grace time.Duration
	if s.welcome != nil {
		grace = s.welcome.Grace
	}
	s.mu.Unlock()
	s.stopAll(0, grace)
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.flush(flushBound)
	}
}

// quietAfter is the time between the end of the last exec and the moment when memory is returned to the kernel.
const quietAfter = time.Second

// flushBound limits how long PID 1 waits at its end for a worker that does not read.
const flushBound = 200 * time.Millisecond
