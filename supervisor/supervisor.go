package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// DefaultGroupBase is the first of the group ids by which execs are found. It is far above what
// images use, and the ids from here on are refused as anybody's group.
const DefaultGroupBase = 1_500_000_000

// Config says where the worker has put things.
type Config struct {
	ControlDir string // holds the worker's socket
	RunDir     string // exec directories
	GroupBase  uint32 // default DefaultGroupBase; differs only where several share a process table
	Privileged bool   // root execs keep the container's capabilities
	Logger     *slog.Logger
}

func (c *Config) validate() error {
	if c.ControlDir == "" || c.RunDir == "" {
		return errors.New("supervisor: the control and the run directory must be given")
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
	config    Config
	boot      string
	started   time.Time
	execsDir  *os.Root
	execsFD   int
	primaryFD int
	reaper    *reaper
	trees     *trees
	oom       *oomCounter
	launcher  *launcher
	primary   *primary
	files     slots

	quiet *time.Timer // gives memory back a while after the last exec ended

	mu       sync.Mutex
	welcome  *control.Welcome // nil until the first one
	execs    map[string]*exec
	numbers  startedNumbers // of starts that were taken
	stopping bool
	outbox   *outbox // of the connection, if there is one
}

// Run is PID 1: it serves the worker until a TERM or INT signal, or the end of ctx, then ends
// every process and returns nil. It confines the calling process for good (see confine), so it is
// for a process of its own, which must run as root with CAP_KILL, CAP_SETGID, CAP_SETUID and
// CAP_SETPCAP.
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
	if s.execsFD, err = openDirectory(config.RunDir, control.ExecsDir); err != nil {
		return nil, err
	}
	if s.execsDir, err = os.OpenRoot(filepath.Join(config.RunDir, control.ExecsDir)); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	if s.primaryFD, err = openDirectory(config.RunDir, control.PrimaryDir); err != nil {
		return nil, err
	}
	s.primary = newPrimary(s)
	if os.Getpid() != 1 {
		// Outside a container orphans would fall to another process.
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

// openDirectory makes a directory of the run directory, if it is not there, and opens it.
func openDirectory(parent, name string) (int, error) {
	path := filepath.Join(parent, name)
	if err := unix.Mkdir(path, 0o700); err != nil && err != unix.EEXIST {
		return 0, fmt.Errorf("supervisor: make %s: %w", path, err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("supervisor: open %s: %w", path, err)
	}
	return fd, nil
}

// greet takes a connection's Welcome. The first of this boot starts the primary command, and is
// refused where it came too late for that.
func (s *supervisor) greet(w *control.Welcome, until time.Duration) bool {
	s.mu.Lock()
	first := s.welcome == nil
	if first && late(until) {
		s.mu.Unlock()
		return false
	}
	s.welcome = w
	s.mu.Unlock()
	if first && len(w.Command) > 0 {
		s.primary.begin(w)
	}
	return true
}

// attach makes box the place where notices go, and fills it with the Hello: everything that
// changes afterwards is a notice behind it.
func (s *supervisor) attach(box *outbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hello := control.Hello{Version: control.Version, Boot: s.boot, Pid: os.Getpid(), Started: s.started, Primary: s.primary.status()}
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

// execsPerHello keeps a Hello far below control.MaxNotice: a status is at most some 1,500 bytes.
const execsPerHello = 256

func (s *supervisor) detach(box *outbox) {
	s.mu.Lock()
	gone := s.outbox == box
	if gone {
		s.outbox = nil
	}
	s.mu.Unlock()
	if gone {
		s.recordAll() // what it did not take must be found by the next
	}
}

// tell sends a notice if a worker is there. One that is not will learn it from the next Hello.
func (s *supervisor) tell(n *control.Notice) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.put(n)
	}
}

// tellOutput tells the sizes of an exec's output as they are when the notice is written.
func (s *supervisor) tellOutput(e *exec) {
	s.mu.Lock()
	box := s.outbox
	s.mu.Unlock()
	if box != nil {
		box.putOutput(e)
	}
}

// accept takes a Start, or finds the exec that it started before. created says which.
func (s *supervisor) accept(start *control.Start) (e *exec, created bool, refused *protocol.Error) {
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
		return nil, false, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "the sandbox is stopping")
	case len(s.execs) >= control.MaxExecs:
		return nil, false, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonQueueFull,
			"the supervisor keeps %d execs that are not forgotten", control.MaxExecs)
	case start.Number != 0 && !s.numbers.take(start.Number):
		return nil, false, startedBefore(start.ID)
	}
	e = newExec(s, start, s.welcome)
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

// forget removes ended execs from memory and disk.
func (s *supervisor) forget(ids []string) {
	for _, id := range ids {
		e := s.exec(id)
		if e == nil || !e.hasEnded() {
			continue
		}
		s.files.acquire()
		s.forgetDisk(e)
		s.files.release()
		s.drop(e)
	}
}

// removeExec removes what an exec directory normally holds by name, and walks it only when
// something else is in it.
func (s *supervisor) removeExec(id string) {
	for _, name := range []string{control.StdoutName, control.StderrName, control.RecordName} {
		unix.Unlinkat(s.execsFD, id+"/"+name, 0)
	}
	err := unix.Unlinkat(s.execsFD, id, unix.AT_REMOVEDIR)
	if err != nil && err != unix.ENOENT {
		err = s.execsDir.RemoveAll(id)
	}
	if err != nil && err != unix.ENOENT {
		s.config.Logger.Warn("an exec directory stays", "exec", id, "error", err)
	}
}

// stopAll ends every exec within grace, the primary command within primaryGrace, and what ended
// execs have left behind. It returns when all is gone.
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

// shutdown ends everything at once, but for a primary command, which has its grace.
// The worker is told of it, if it listens.
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

// quietAfter is how long no exec has ended before what the last burst took is given back.
const quietAfter = time.Second

// flushBound is how long the end of PID 1 waits for a worker that does not read.
const flushBound = 200 * time.Millisecond
