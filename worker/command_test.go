package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestTheWorkerStartsNoCommandOfItsOwnWithoutTheHostsLock(t *testing.T) {
	s := &sandbox{w: &worker{}}
	if _, _, err := s.command(t.Context(), nil, control.Start{ID: "hook"}); protocol.AsError(err) == nil || protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
		t.Errorf("it is started: %v", err)
	}
}
