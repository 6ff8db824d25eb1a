package worker

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// operation is what a worker does next about a sandbox.
type operation string

const (
	opNothing operation = ""        // the host shows what the log says
	opCreate  operation = "create"  // make network and container, start, wait for the supervisor, append ready
	opResume  operation = "resume"  // start the stopped container, append ready
	opAttach  operation = "attach"  // connect to the supervisor of a running container
	opRevive  operation = "revive"  // a container that should run does not: start it again, or fail
	opStop    operation = "stop"    // end execs, stop the container, append stopped
	opHalt    operation = "halt"    // stop a container that should not run, and keep it
	opDelete  operation = "delete"  // end execs, remove everything, append deleted
	opDiscard operation = "discard" // remove everything of a sandbox that is not this host's, append nothing
)

// containerState is what the host shows of a sandbox's container.
type containerState int

const (
	containerUnknown containerState = iota // not looked yet, or the engine did not answer
	containerAbsent
	containerMade // created, never started
	containerRunning
	containerExited
)

// observed is what the host shows of a sandbox.
type observed struct {
	container  containerState
	generation uint64 // of the container
	leftovers  bool   // a network or a directory is there
	connected  bool   // the supervisor is
	boot       string // of the connected supervisor
	services   bool   // a service's container runs; only looked at where none should
}

// next compares what the log says with what the host shows. It is pure.
func next(b *protocol.Sandbox, hostID string, o observed) operation {
	if o.container == containerUnknown {
		return opNothing // an engine that did not answer is not a container that is gone
	}
	present := o.container != containerAbsent || o.leftovers
	if b.State == protocol.StateNone {
		return opNothing // what the log does not know at all is not touched
	}
	foreign := b.HostID != hostID || o.container != containerAbsent && o.generation != b.Generation
	if foreign || b.State == protocol.StateDeleted {
		if present {
			return opDiscard
		}
		if foreign {
			return opNothing
		}
	}
	switch b.State {
	case protocol.StatePending:
		switch {
		case !b.Assigned:
			return opNothing
		case b.Resuming:
			return opResume
		}
		return opCreate
	case protocol.StateReady:
		switch {
		case b.Desired == protocol.StateStopped:
			return opStop
		case o.container != containerRunning:
			return opRevive
		case !o.connected, o.boot != b.Boot: // or the log has not got it yet that it was started again
			return opAttach
		}
	case protocol.StateStopped:
		if o.container == containerRunning || o.services {
			return opHalt
		}
	case protocol.StateFailed:
		if b.ReadyAt.IsZero() && present {
			return opDiscard // a create that failed leaves nothing
		}
		if o.container == containerRunning || o.services {
			return opHalt // kept for inspection
		}
	case protocol.StateDeleting:
		return opDelete
	}
	return opNothing
}
