package supervisor

import (
	"errors"
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// ownProgram is this process's program, also for a child that has not executed another one yet. Nothing in the
// container can replace it.
const ownProgram = "/proc/self/exe"

// handleHelp starts a helper with the descriptor that came with the command, and answers.
func (s *supervisor) handleHelp(c *control.Command, files []int, box *outbox) {
	reply := func(err *protocol.Error) {
		box.put(&control.Notice{Reply: &control.Reply{Seq: c.Seq, Error: err}})
	}
	switch {
	case late(c.Until):
		closeFiles(files)
		reply(protocol.Errorf(protocol.Unavailable, protocol.ReasonLeaseLost,
			"the command reached the supervisor after the end of the worker's lease"))
		return
	case len(files) != control.HelperFiles:
		closeFiles(files)
		reply(errNoRoom)
		return
	}
	go func() {
		defer closeFiles(files)
		reply(protocol.AsError(s.startHelper(c.Help, files[0])))
	}()
}

// startHelper starts a process that serves the worker on a socket, as a user of the container. The process is in no
// exec. It has a group of its own, so that stopAll ends it.
func (s *supervisor) startHelper(h *control.Help, socket int) error {
	s.mu.Lock()
	user, cwd := h.User, h.Cwd
	if user == "" {
		user = s.welcome.DefaultUser
	}
	if cwd == "" {
		cwd = s.welcome.DefaultCwd
	}
	var refused error
	switch {
	case s.stopping:
		refused = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxStopping, "the sandbox is stopping")
	case s.helpers >= control.MaxHelpers:
		refused = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonStartFailed,
			"%d operations on files already run in the container, at most %d are allowed", s.helpers, control.MaxHelpers)
	default:
		s.helpers++
	}
	s.mu.Unlock()
	if refused != nil {
		return refused
	}
	child, err := s.launcher.startHelper(user, cwd, socket)
	if err != nil {
		s.helperEnded()
		return err
	}
	go func() {
		<-child.exited
		s.helperEnded()
	}()
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	if stopping { // stopAll may have looked for processes before this one was there
		s.trees.kill(func(group uint32) bool { return group == child.group })
	}
	return nil
}

func (s *supervisor) helperEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.helpers--
}

// startHelper starts this process's program as a helper. The helper gets nothing of this process but the socket: no
// environment, which may have secrets, and no file to write to, because the user may trace the helper.
func (l *launcher) startHelper(user, cwd string, socket int) (*child, error) {
	if user == "" {
		user = "0"
	}
	if cwd == "" {
		cwd = "/"
	}
	if err := protocol.ValidateFilePath("cwd", cwd); err != nil {
		return nil, err
	}
	l.starting.acquire()
	defer l.starting.release()
	acct, refused := l.accounts.resolve(user)
	if refused != nil {
		return nil, refused
	}
	group := l.group()
	null := uintptr(l.null.Fd())
	child, err := l.reaper.start(ownProgram, []string{control.HelperName, cwd}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{null, null, null, uintptr(socket)},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			Credential: &syscall.Credential{
				Uid:    acct.uid,
				Gid:    acct.gid,
				Groups: append(acct.groups[:len(acct.groups):len(acct.groups)], group),
			},
		},
	}, group)
	if err != nil {
		err = startError(control.HelperName, err)
		if e := (*unrunnable)(nil); errors.As(err, &e) {
			return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed,
				"start the process that works on files: %s", e.message)
		}
		return nil, err
	}
	return child, nil
}
