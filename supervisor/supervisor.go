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
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// DefaultGroupBase is the first of the group ids by which execs are found. It is far above those that images use. No
// user may have a group from here on.
const DefaultGroupBase = 1_500_000_000

// Config says where the worker has put things.
type Config struct {
	ControlDir string // holds the worker's socket
	GroupBase  uint32 // default DefaultGroupBase; another one only where several supervisors share a process table
	Privileged bool   // execs that run as root keep the container's capabilities
	Logger     *slog.Logger
}

func (c *Config) validate() error {
	if c.ControlDir == "" {
		return errors.New("supervisor: the control directory must be given")
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

	quiet *time.Timer // frees memory a while after the last exec ended

	mu       sync.Mutex
	welcome  *control.Welcome // nil until the first one
	execs    map[string]*exec
	numbers  startedNumbers // of the starts that were taken
	stopping bool
	outbox   *outbox // of the current connection, nil if there is none
}

// Run is PID 1: it serves the worker until a TERM or INT signal, or the end of ctx, then ends every process and returns
// nil. It confines the calling process for good (see confine), so the process must do nothing else. It must run as root
// with CAP_KILL, CAP_SETGID, CAP_SETUID and CAP_SETPCAP.
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
	}
	if config.Privileged {
		s.trees.mains = s.reaper.groups
	}
	s.quiet = time.AfterFunc(quietAfter, debug.FreeOSMemory)
	var err error
	if s.launcher, err = newLauncher(config.GroupBase, s.reaper); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	s.primary = newPrimary(s)
	if os.Getpid() != 1 {
		// Outside a container, orphans would go to another process.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("supervisor: become a subreaper: %w", err)
		}
	}
	return s, nil
}

func newBoot() string {
	var id [8]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// greet takes a connection's Welcome, with the files that came with it. The first one of this boot starts the primary
// command; it is refused if it arrives after until.
func (s *supervisor) greet(w *control.Welcome, files []int, until time.Duration) bool {
	s.mu.Lock()
	first := s.welcome == nil
	refused := first && late(until)
	if !refused {
		s.welcome = w
	}
	s.mu.Unlock()
	if refused || !first || len(w.Command) == 0 {
		closeFiles(files)
		return !refused
	}
	s.primary.begin(w, files)
	return true
}

// attach makes box the place where notices go, and fills it with the Hello: every later change is a notice behind it.
func (s *supervisor) attach(box *outbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hello := control.Hello{
		Version:    control.Version,
		Boot:       s.boot,
		Pid:        os.Getpid(),
		Started:    s.started,
		Primary:    s.primary.status(),
		TakesFiles: true,
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

// execsPerHello keeps a Hello far below control.MaxNotice: a status has at most about 1,500 bytes.
const execsPerHello = 256

func (s *supervisor) detach(box *outbox) {
	s.mu.Lock()
	gone := s.outbox == box
	if gone {
		s.outbox = nil
	}
	s.mu.Unlock()
	if gone {
		s.recordAll() // the next worker must find what this one did not take
	}
}

// tell sends a notice if a worker is connected. Otherwise the worker learns it from the next Hello.
func (s *supervisor) tell(n *control.Notice) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.put(n)
	}
}

// tellOutput sends the sizes of an exec's output as they are when the notice is written.
func (s *supervisor) tellOutput(e *exec) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.putOutput(e)
	}
}

// accept takes a Start with its files, or finds the exec that it started before. If created is false, the files still
// belong to the caller.
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
			"the supervisor already remembers %d execs", control.MaxExecs)
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

// forget drops ended execs. The worker removes their files.
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

// stopAll ends every exec within grace, the primary command within primaryGrace, and the processes that ended execs
// have left behind. It returns when all are gone.
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

// shutdown ends everything at once, except the primary command, which gets its grace. It tells the worker, if one is
// connected.
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

// quietAfter is how long after the last exec ended its memory is freed.
const quietAfter = time.Second

// flushBound is how long PID 1 waits, at its end, for a worker that does not read.
const flushBound = 200 * time.Millisecond
