package decide

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// Operation is what a worker does next for a sandbox.
type Operation string

const (
	Nothing Operation = ""        // the host is in the state in the log
	Create  Operation = "create"  // make network and container, start, wait for the supervisor, append ready
	Resume  Operation = "resume"  // start the stopped container, append ready
	Attach  Operation = "attach"  // connect to the supervisor of a running container
	Revive  Operation = "revive"  // restart a container that should run but does not, or append failed
	Stop    Operation = "stop"    // end execs, stop the container, append stopped
	Halt    Operation = "halt"    // stop containers that should not run, but do not remove them
	Delete  Operation = "delete"  // end execs, remove everything of the sandbox, append deleted
	Discard Operation = "discard" // remove everything of a sandbox that should not be on this host, append nothing
)

// ContainerState is the state of a sandbox's container on the host.
type ContainerState int

const (
	ContainerUnknown ContainerState = iota // not inspected yet, or the engine did not answer
	ContainerAbsent
	ContainerMade // created, never started
	ContainerRunning
	ContainerExited
)

// Inspection describes the parts of a sandbox that exist on the host.
type Inspection struct {
	Container  ContainerState
	Generation uint64 // generation of the container
	Leftovers  bool   // the host has a network or a directory of the sandbox
	Connected  bool   // the supervisor is connected
	Boot       string // boot of the connected supervisor
	Services   bool   // a service's container runs; always false while the log wants the services to run
}

// Next compares the log with the host, and returns the operation that brings the host closer to the state in the log.
func Next(b *protocol.Sandbox, hostID string, found Inspection) Operation {
	if found.Container == ContainerUnknown {
		return Nothing // the engine did not answer, so the container may exist
	}
	present := found.Container != ContainerAbsent || found.Leftovers
	if b.State == protocol.StateNone {
		return Nothing // never touch a sandbox that the log does not know
	}
	foreign := b.HostID != hostID || found.Container != ContainerAbsent && found.Generation != b.Generation
	if foreign || b.State == protocol.StateDeleted {
		if present {
			return Discard
		}
		if foreign {
			return Nothing
		}
	}
	switch b.State {
	case protocol.StatePending:
		switch {
		case !b.Assigned:
			return Nothing
		case b.Resuming:
			return Resume
		}
		return Create
	case protocol.StateReady:
		switch {
		case b.Desired == protocol.StateStopped:
			return Stop
		case found.Container != ContainerRunning:
			return Revive
		case !found.Connected, found.Boot != b.Boot: // with another boot, the log lacks the container's last start
			return Attach
		}
	case protocol.StateStopped:
		if found.Container == ContainerRunning || found.Services {
			return Halt
		}
	case protocol.StateFailed:
		if b.ReadyAt.IsZero() && present {
			return Discard // a failed create leaves nothing on the host
		}
		if found.Container == ContainerRunning || found.Services {
			return Halt // people can inspect the stopped container
		}
	case protocol.StateDeleting:
		return Delete
	}
	return Nothing
}

// HoldsHost reports whether placement counts the sandbox's resources as used on this host.
func HoldsHost(b *protocol.Sandbox, hostID string) bool {
	return b.HostID == hostID && (b.Assigned || b.State == protocol.StateDeleting)
}
