package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/cgroup"
)

// measured is one container of the sandbox that is measured.
type measured struct {
	service string // "": the primary container
	cores   float64
	a       *attach.Attachment // nil: its supervisor is not connected
}

// containersToMeasure returns the primary container and then the services by name.
func (s *Sandbox) containersToMeasure() []measured {
	var spec protocol.SandboxSpec
	s.history().View(func(st *protocol.State) { spec = st.Sandbox.Spec })
	list := []measured{{cores: spec.CPU, a: s.conn.attachment()}}
	for name, v := range s.services.named() {
		a, _, _ := v.Container()
		of, _ := spec.Service(name)
		list = append(list, measured{service: name, cores: of.CPU, a: a})
	}
	slices.SortFunc(list, func(a, b measured) int { return cmp.Compare(a.service, b.service) })
	return list
}

// Usage reads what each container of the sandbox uses. It asks only the kernel.
func (s *Sandbox) Usage() *protocol.SandboxUsage {
	u := &protocol.SandboxUsage{Worker: s.host.Worker, HostID: s.host.ID}
	for _, c := range s.containersToMeasure() {
		one := protocol.ContainerUsage{Service: c.service}
		if why := c.read(&one); why != nil {
			one = protocol.ContainerUsage{Service: c.service, Error: why}
		}
		u.Containers = append(u.Containers, one)
	}
	return u
}

var errNotConnected = protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
	"the container does not run, or its supervisor is not connected")

// read reads the counters of a container. The supervisor's connection proves that the process id is still the
// supervisor's, so it is checked after the last read, too.
func (c measured) read(u *protocol.ContainerUsage) *protocol.Error {
	if !c.a.Up() {
		return errNotConnected
	}
	group, err := cgroup.Of(c.a.Pid)
	if err != nil {
		return protocol.AsError(err)
	}
	counters, err := group.Read()
	if err != nil {
		return protocol.AsError(err)
	}
	u.At, u.Boot, u.CPULimit = protocol.Duration(control.Clock()), c.a.Boot, c.cores
	u.CPU, u.PIDs, u.PIDsLimit = protocol.Duration(counters.CPU), counters.PIDs, counters.PIDsLimit
	u.Memory, u.MemoryLimit = protocol.Bytes(counters.Memory), protocol.Bytes(counters.MemoryLimit)
	if counters.DiskKnown {
		read, written := protocol.Bytes(counters.Read), protocol.Bytes(counters.Written)
		u.Read, u.Written = &read, &written
	}
	received, sent, err := cgroup.Network(c.a.Pid)
	if err != nil {
		return protocol.AsError(err)
	}
	u.Received, u.Sent = protocol.Bytes(received), protocol.Bytes(sent)
	again, err := cgroup.Of(c.a.Pid)
	if err != nil || !group.Equal(again) || !c.a.Up() {
		return errNotConnected
	}
	return nil
}

// listWithin limits how long the supervisors of a sandbox may take to list their processes. It is half of the time that
// the coordinator waits for the worker's answer, so that a busy worker can still say which container did not answer.
const listWithin = 750 * time.Millisecond

// Processes asks the supervisors of the sandbox for the processes in their containers. A supervisor that does not
// answer delays the answer by listWithin, and the other containers are listed anyway.
func (s *Sandbox) Processes(ctx context.Context) *protocol.ProcessList {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	list := s.containersToMeasure()
	p := &protocol.ProcessList{Worker: s.host.Worker, HostID: s.host.ID,
		Containers: make([]protocol.ContainerProcesses, len(list))}
	var asking sync.WaitGroup
	for i, c := range list {
		asking.Go(func() { p.Containers[i] = c.processes(ctx) })
	}
	asking.Wait()
	return p
}

func (c measured) processes(ctx context.Context) protocol.ContainerProcesses {
	of := protocol.ContainerProcesses{Service: c.service}
	if !c.a.Up() {
		of.Error = errNotConnected
		return of
	}
	of.Boot = c.a.Boot
	table, err := c.a.Link.Processes(ctx)
	switch why := protocol.AsError(err); {
	case err == nil:
		of.Processes, of.More = bounded(table)
	case why.Reason == protocol.ReasonUnsupportedVersion:
		of.Error = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the container's supervisor is too old to list processes: stop the sandbox and resume it")
	default:
		of.Error = why
	}
	return of
}

// bounded returns the processes that a supervisor listed, within the limits of the protocol. The worker does not trust
// a supervisor to keep these limits, because it runs in the sandbox's container.
func bounded(table *control.ProcessTable) (list []protocol.Process, more int) {
	list, more = table.Processes, max(table.More, 0)
	if extra := len(list) - protocol.MaxProcesses; extra > 0 {
		list, more = list[:protocol.MaxProcesses], more+extra
	}
	for i := range list {
		p := &list[i]
		if protocol.ValidateID("exec", p.Exec) != nil {
			p.Exec = ""
		}
		p.State = p.State[:min(len(p.State), 1)]
		p.Command = strings.ToValidUTF8(p.Command[:min(len(p.Command), protocol.MaxProcessCommand)], "")
	}
	return list, more
}
