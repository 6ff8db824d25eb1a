package sandbox

import (
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/execs"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

func newExecs(s *Sandbox) *execs.Execs {
	h := s.host
	return execs.New(execs.Config{
		HostID: h.ID, Key: s.key, Log: s.history(), Containers: execContainers{s}, Clock: h.Conn, Output: h.Output,
		Unseal: h.Unseal, Fence: h.Fence, Probe: h.Probe, Wake: s.wake.Wake, Reread: s.setStale, Logger: s.log,
	})
}

// execContainers implements execs.Containers.
type execContainers struct{ s *Sandbox }

func (c execContainers) Attachment(service string) *attach.Attachment {
	return c.s.conn.attachmentOf(service)
}

func (c execContainers) Status(service string) (a *attach.Attachment, down, givenUp bool) {
	if service == "" {
		found := c.s.local.Container
		return c.s.conn.attachment(), found != decide.ContainerUnknown && found != decide.ContainerRunning, false
	}
	if v := c.s.services.get(service); v != nil {
		return v.Container()
	}
	return nil, false, false
}

func (c execContainers) Dir(generation uint64) hostdir.Dir { return c.s.dir(generation) }

func (c execContainers) StoppedForDisk() *protocol.Error { return c.s.diskStop.now() }

// setStale makes the sandbox read the log before its next step.
func (s *Sandbox) setStale() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}
