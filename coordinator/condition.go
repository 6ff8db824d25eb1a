package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// condition is the state that a coordinator reports through [Config.OnState] once it has read the log.
type condition struct {
	say func(well bool, text string)

	mu     sync.Mutex
	serves bool            // the coordinator answers reads and decides requests
	leads  bool            // the coordinator holds the scheduler's lock
	held   *protocol.Error // why requests wait; nil: requests are decided
	silent error           // why the event log does not answer; nil: the log answers
}

// change changes the condition and reports it.
func (s *condition) change(set func(s *condition)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(s)
	switch {
	case !s.serves: // Run reports the steps of the start
	case s.held != nil:
		s.say(false, "requests wait: "+s.held.Error())
	case s.silent != nil:
		s.say(false, "the event log does not answer: "+s.silent.Error())
	case s.leads:
		s.say(true, "decides requests, and places sandboxes")
	default:
		s.say(true, "decides requests, and stands by to schedule")
	}
}

// watchedLog records in the coordinator's condition whether the event log answers.
type watchedLog struct{ *coordinator }

func (w watchedLog) LogRoom(ctx context.Context) (jetstream.Room, error) {
	room, err := w.conn.LogRoom(ctx)
	w.condition.change(func(s *condition) { s.silent = err })
	return room, err
}

// Names of the main loops, for [Config.OnTurn].
const (
	gateLoop   = "requests"
	stateLoop  = "state"
	turnWithin = time.Minute // longest time between two turns of a loop
)

// turnState uses the locks of the coordinator's state once a second, until ctx ends. If one of these locks is never
// released, turnState hangs, and its loop does not turn again.
func (c *coordinator) turnState(ctx context.Context) error {
	defer c.cfg.OnTurn(stateLoop, 0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		c.cfg.OnTurn(stateLoop, turnWithin)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			c.projection.read.get(key{})
			c.hosts.states()
		}
	}
}
