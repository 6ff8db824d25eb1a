package coordinator

import "github.com/boxfleet/boxfleet/protocol"

// refuseWorker refuses an exec that the worker of the sandbox's host cannot run: the worker speaks no version of the
// wire that this coordinator speaks, or the exec has a stdin that stays open, and the worker would run it with an empty
// one.
func (c *coordinator) refuseWorker(s *protocol.State, spec *protocol.ExecSpec) error {
	h := c.hostOf(s)
	switch {
	case h == nil:
	case h.Unsupported != "":
		return unsupportedWorker(h)
	case spec.OpenStdin && !h.TakesInput:
		return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonUnsupported,
			Field: "spec.open_stdin", Message: "worker " + h.Worker + " is too old to pass input to running execs: upgrade " +
				"it, or give at most 128 KiB in stdin"}
	}
	return nil
}

// refuseResume refuses to resume a sandbox whose worker speaks no version of the wire that this coordinator speaks.
func (c *coordinator) refuseResume(s *protocol.State) error {
	if h := c.hostOf(s); h != nil && h.Unsupported != "" {
		return unsupportedWorker(h)
	}
	return nil
}

// unsupportedWorker is the error for work that a worker cannot get. The worker still stops and deletes its sandboxes.
func unsupportedWorker(h *protocol.Host) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
		"worker %s gets no work: %s; its sandboxes can be stopped and deleted", h.Worker, h.Unsupported)
}

// hostOf returns the host of a sandbox, or nil if this coordinator does not know it.
func (c *coordinator) hostOf(s *protocol.State) *protocol.Host {
	hosts, _ := c.hostTable.now(c)
	for _, h := range hosts {
		if s.Sandbox.HostID != "" && h.HostID == s.Sandbox.HostID {
			return h
		}
	}
	return nil
}
