package decide

import "github.com/boxfleet/boxfleet/protocol"

// Used returns an event that says how clients use streams into the sandbox.
func Used(st *protocol.State, uses []protocol.StreamUse) []protocol.Event {
	switch st.Sandbox.State {
	case protocol.StateReady, protocol.StateStopped, protocol.StateFailed, protocol.StateDeleting:
	default:
		return nil
	}
	if len(uses) == 0 {
		return nil
	}
	return []protocol.Event{{Kind: protocol.SandboxUsed, Streams: uses}}
}
