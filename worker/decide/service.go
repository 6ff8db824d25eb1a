package decide

import (
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// WantsServices reports whether the log wants a sandbox's services to run on this host.
func WantsServices(b *protocol.Sandbox, hostID string) bool {
	if b.HostID != hostID || !b.Assigned {
		return false
	}
	return b.State == protocol.StatePending || b.State == protocol.StateReady && b.Desired == protocol.StateReady
}

// Service returns a copy of events about a service, or nil if the log does not want the sandbox's services to run on
// this host.
func Service(st *protocol.State, hostID string, events []protocol.Event) []protocol.Event {
	if !WantsServices(&st.Sandbox, hostID) {
		return nil
	}
	return append([]protocol.Event(nil), events...)
}

// ServiceReady records that the service is ready.
func ServiceReady(name string) []protocol.Event {
	return []protocol.Event{{Kind: protocol.ServiceReady, Service: &protocol.ServiceDetails{Name: name}}}
}

// ServiceFailed records why the service failed.
func ServiceFailed(name string, why *protocol.Error) []protocol.Event {
	return []protocol.Event{{Kind: protocol.ServiceFailed, Reason: why.Reason, Error: why,
		Service: &protocol.ServiceDetails{Name: name}}}
}

// ServiceHook records the outcome of the hook with this number; the first hook has number 1. If the hook failed, the
// same message also fails the service. With two messages, a worker that restarts between them would continue with the
// next hook.
func ServiceHook(name string, number int, exit *int, output []byte, failed *protocol.Error) []protocol.Event {
	hook := protocol.Event{Kind: protocol.ServiceHook,
		Service: &protocol.ServiceDetails{Name: name, Hook: number, ExitCode: exit, Output: output}}
	if failed == nil {
		return []protocol.Event{hook}
	}
	hook.Error, hook.Reason = failed, failed.Reason
	return append([]protocol.Event{hook}, ServiceFailed(name, failed)...)
}

// ServiceEnded returns one event for all ends of the service's command that the log lacks. The supervisor pauses before
// it starts the command again, so the number of these events is limited. The command of a failed service may end again
// and again for weeks, so ServiceEnded then returns an event only if the exit code differs from the last recorded exit
// code.
func ServiceEnded(name, boot string, status *protocol.ServiceStatus, p *control.Primary) []protocol.Event {
	ends := EndsOf(p)
	recorded := status.Boot == boot && status.Ends >= ends
	same := status.LastExit != nil && p.LastExit != nil && *status.LastExit == *p.LastExit
	if ends == 0 || recorded || status.State == protocol.ServiceStateFailed && same {
		return nil
	}
	e := protocol.Event{Kind: protocol.ServiceEnded, Error: p.Error,
		Service: &protocol.ServiceDetails{Name: name, ExitCode: p.LastExit, Ends: ends, Boot: boot}}
	if OutOfMemory(p) {
		e.Reason = protocol.ReasonOOMKilled
	}
	return []protocol.Event{e}
}

// EndsOf returns how many times a command has ended since its container was started.
func EndsOf(p *control.Primary) int {
	ends := p.Restarts
	if !p.Running && (p.LastExit != nil || p.Error != nil) {
		ends++
	}
	return ends
}
