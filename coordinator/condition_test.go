package coordinator

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestALockThatIsNeverReleasedStopsALoop(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var mu sync.Mutex
	turned := map[string]int{}
	var c *coordinator
	stop := d.run(Config{Name: "c1", made: func(made *coordinator) { c = made },
		OnTurn: func(loop string, next time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if turned[loop]++; next == 0 {
				turned[loop] = 0
			}
		}})
	turns := func(loop string) int {
		mu.Lock()
		defer mu.Unlock()
		return turned[loop]
	}
	for _, lock := range []sync.Locker{&c.hosts.mu, &c.projection.mu} {
		d.eventually("both loops turn", func() bool { return turns(stateLoop) > 1 && turns(gateLoop) > 1 })
		lock.Lock()
		before := 0
		d.eventually("the loop that needs the lock has stopped, and the other turns", func() bool {
			state, gate := turns(stateLoop), turns(gateLoop)
			d.eventually("the other loop turns", func() bool { return turns(gateLoop) > gate+2 })
			before = turns(stateLoop)
			return before == state
		})
		lock.Unlock()
		d.eventually("the loop turns again", func() bool { return turns(stateLoop) > before })
	}
	stop()
	if turns(stateLoop) != 0 || turns(gateLoop) != 0 {
		t.Errorf("after the end of the coordinator: %v", turned)
	}
}

func TestTheConditionNamesTheMostImportantReason(t *testing.T) {
	t.Parallel()
	well, text := true, "starting"
	s := &condition{say: func(w bool, t string) { well, text = w, t }}
	for _, c := range []struct {
		set  func(s *condition)
		well bool
		says string
	}{
		{func(s *condition) { s.leads = true }, true, "starting"},
		{func(s *condition) { s.serves = true }, true, "places sandboxes"},
		{func(s *condition) { s.leads = false }, true, "stands by"},
		{func(s *condition) { s.silent = protocol.ErrUnavailable }, false, "does not answer"},
		{func(s *condition) { s.held = protocol.ErrResourceExhausted }, false, "requests wait"},
		{func(s *condition) { s.held = nil }, false, "does not answer"},
		{func(s *condition) { s.silent = nil }, true, "stands by"},
	} {
		if s.change(c.set); well != c.well || !strings.Contains(text, c.says) {
			t.Errorf("%t, %s; want %t, %s", well, text, c.well, c.says)
		}
	}
}
