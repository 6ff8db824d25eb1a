package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// SandboxUsage says what the containers of a sandbox use.
type SandboxUsage = protocol.SandboxUsage

// ContainerUsage says what one container uses. Its method CPUSince compares it with an earlier reading.
type ContainerUsage = protocol.ContainerUsage

// ProcessList lists the processes of a sandbox.
type ProcessList = protocol.ProcessList

// ContainerProcesses lists the processes of one container.
type ContainerProcesses = protocol.ContainerProcesses

// Process is one process of a sandbox.
type Process = protocol.Process

// Usage asks the worker of the sandbox's host, once, what each container of the sandbox uses: processor time, memory,
// processes, network and disk. Processor time is a counter: two readings and their own times say how much was used
// between them. If one container cannot be read, its Error says why. Errors: not_found; failed_precondition if the
// sandbox is not ready; unavailable with reason worker_away, naming the host, if its worker does not answer;
// unavailable if no coordinator is running.
func (s *Sandbox) Usage(ctx context.Context) (*SandboxUsage, error) {
	reply, err := measure(ctx, s, protocol.EndpointUsage)
	if err == nil && reply.Usage == nil {
		err = protocol.Errorf(protocol.Internal, "", "the answer has no usage")
	}
	if err != nil {
		return nil, err
	}
	return reply.Usage, nil
}

// Processes asks the worker of the sandbox's host, once, for the processes of the sandbox, with the exec that each of
// them belongs to. The commands come from the sandbox and may contain any characters, also those that a terminal takes
// as commands. If one container's processes cannot be listed, its Error says why. Errors are those of [Sandbox.Usage].
func (s *Sandbox) Processes(ctx context.Context) (*ProcessList, error) {
	reply, err := measure(ctx, s, protocol.EndpointProcesses)
	if err == nil && reply.Processes == nil {
		err = protocol.Errorf(protocol.Internal, "", "the answer has no processes")
	}
	if err != nil {
		return nil, err
	}
	return reply.Processes, nil
}

func measure(ctx context.Context, s *Sandbox, endpoint string) (*protocol.Reply, error) {
	if err := protocol.ValidateID("sandbox", s.ID()); err != nil {
		return nil, err
	}
	id, err := s.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	return s.client.query(ctx, endpoint, protocol.Query{Sandbox: id})
}
