package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// gate holds requests back while the log takes none of what they lead to. What was acknowledged is
// then neither refused nor given up: it stays in hand, and the queue behind it fills until its own
// limits refuse more. What ends something goes through, since it makes room, and has the log's
// reserve.
//
//	open ──(an append says full or unavailable, or the log says: only the reserve is left)──► closed
//	closed: one request at a time is the probe ──(it appended something)──► open
type gate struct {
	log  logRoom
	tell func(why *protocol.Error) // says why it is closed, nil when it opens

	turns chan struct{} // the right to be the probe
	mu    sync.Mutex
	why   *protocol.Error // nil: open
	moved chan struct{}   // closed when why becomes nil, or something else
	ended chan outcome    // of the probe

	blamed   key // the last sandbox whose history did not answer
	blamedAt time.Time
}

// logRoom says how much room the log has.
type logRoom interface {
	LogRoom(ctx context.Context) (jetstream.Room, error)
}

// outcome is what became of a decision, as far as the log is concerned.
type outcome int

const (
	nothingAppended outcome = iota
	appended
	mustWait
)

const (
	probePause   = 250 * time.Millisecond // between two probes
	roomPause    = time.Second            // between two looks at the log's room, while it is open
	stallPause   = 5 * time.Second        // a decision that takes longer waits for the log
	sayAgain     = 30 * time.Second       // a client is told again that its request waits
	endingPause  = time.Second            // before requests that end something are looked for behind those that wait
	endingAtOnce = 64                     // requests that end something and are in decision
	restAtOnce   = 512                    // others
)

func newGate(log logRoom, tell func(*protocol.Error)) *gate {
	return &gate{log: log, tell: tell, turns: make(chan struct{}), moved: make(chan struct{}), ended: make(chan outcome)}
}

// waits says whether an error is that of a log that takes nothing now, which says nothing of the
// request.
func waits(err error) bool {
	e := protocol.AsError(err)
	if e == nil {
		return false
	}
	switch e.Code {
	case protocol.Unavailable, protocol.DeadlineExceeded, protocol.Cancelled:
		return true
	case protocol.ResourceExhausted:
		return e.Reason == protocol.ReasonLogFull || e.Reason == protocol.ReasonStoreFull
	}
	return false
}

// endsSomething says whether a request makes room, and may use the log's reserve.
func endsSomething(verb string) bool {
	return verb == protocol.VerbCancel || verb == protocol.VerbStop || verb == protocol.VerbDelete
}

// closed is why requests are held back, nil while they are not, and what is closed when that changes.
func (g *gate) closed() (why *protocol.Error, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why, g.moved
}

// set closes the gate, or opens it for nil.
func (g *gate) set(why *protocol.Error) {
	g.mu.Lock()
	before := g.why
	g.why = why
	changed := (before == nil) != (why == nil) || why != nil && before.Reason != why.Reason
	if changed {
		close(g.moved)
		g.moved = make(chan struct{})
	}
	g.mu.Unlock()
	if changed {
		g.tell(why)
	}
}

// blameKept is how long a sandbox whose history did not answer is remembered, so that another one shows
// that it is the log.
const blameKept = time.Minute

// blame closes the gate for a decision that the log did not take. A log that is full says so itself. An
// append or a reading without an answer may be the fault of one sandbox, whose history is very long, say:
// the others must not wait for it. It is the log where that does not answer about its room either, or
// where two sandboxes have the same trouble.
func (g *gate) blame(ctx context.Context, k key, why *protocol.Error) {
	if why.Code != protocol.ResourceExhausted && !g.logAnswersNobody(ctx, k) {
		return
	}
	g.set(why)
}

func (g *gate) logAnswersNobody(ctx context.Context, k key) bool {
	if known := g.look(ctx); known == nil || known.RefusesNew() {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	another := g.blamed != key{} && g.blamed != k && time.Since(g.blamedAt) < blameKept
	g.blamed, g.blamedAt = k, time.Now()
	return another
}

// pass waits until a request may be decided, and says whether it is the probe: then [gate.probed] must
// be called. say is called with the reason when the wait begins, and from time to time. Error: that
// of ctx.
func (g *gate) pass(ctx context.Context, verb string, say func(why *protocol.Error)) (probe bool, err error) {
	for {
		why, moved := g.closed()
		if why == nil || endsSomething(verb) {
			return false, ctx.Err()
		}
		say(why)
		again := time.NewTimer(sayAgain)
		select {
		case <-g.turns:
			probe = true
		case <-moved:
		case <-again.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		again.Stop()
		if probe || err != nil {
			return probe, err
		}
	}
}

// probed says what became of the probe.
func (g *gate) probed(ctx context.Context, o outcome) {
	select {
	case g.ended <- o:
	case <-ctx.Done():
	}
}

// run opens and closes the gate until ctx ends. drain is called whenever it closes, with a context that
// ends when it opens.
func (g *gate) run(ctx context.Context, drain func(ctx context.Context)) error {
	for {
		if err := g.watch(ctx); err != nil {
			return err
		}
		shut, open := context.WithCancel(ctx)
		var draining sync.WaitGroup
		draining.Go(func() { drain(shut) })
		err := g.probe(ctx)
		open()
		draining.Wait()
		if err != nil {
			return err
		}
		g.set(nil)
	}
}

// watch returns when the gate is closed: by a decision, or since only the log's reserve is left.
func (g *gate) watch(ctx context.Context) error {
	tick := time.NewTicker(roomPause)
	defer tick.Stop()
	for {
		why, moved := g.closed()
		if why != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		case <-tick.C:
			g.look(ctx)
		}
	}
}

// probe lets one request after another try, and returns when one of them appended something. The log
// is asked first: it may take a request, and be in its reserve all the same.
func (g *gate) probe(ctx context.Context) error {
	said := time.Now()
	for pause := probePause; ; {
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = probePause
		if time.Since(said) >= protocol.StatusPeriod {
			g.tellAgain(&said)
		}
		known := g.look(ctx)
		if known != nil && known.RefusesNew() {
			continue
		}
		select {
		case g.turns <- struct{}{}:
		case <-time.After(probePause):
			if known != nil { // nobody waits, and there is room: the next request tells more
				return nil
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		o, err := g.awaitProbe(ctx, &said)
		switch {
		case err != nil:
			return err
		case o == appended:
			return nil
		case o == nothingAppended:
			pause = 0
		}
	}
}

// look asks how much room the log has, nil where it does not answer. It closes the gate where only the
// reserve is left.
func (g *gate) look(ctx context.Context) *jetstream.Room {
	ctx, cancel := context.WithTimeout(ctx, 2*roomPause)
	defer cancel()
	room, err := g.log.LogRoom(ctx)
	if err != nil {
		return nil
	}
	if room.RefusesNew() {
		g.set(protocol.AsError(room.Err()))
	}
	return &room
}

func (g *gate) tellAgain(said *time.Time) {
	why, _ := g.closed()
	g.tell(why)
	*said = time.Now()
}

// awaitProbe waits for the probe's outcome, which may take as long as an append is tried for.
func (g *gate) awaitProbe(ctx context.Context, said *time.Time) (outcome, error) {
	tick := time.NewTicker(protocol.StatusPeriod)
	defer tick.Stop()
	for {
		select {
		case o := <-g.ended:
			return o, nil
		case <-tick.C:
			g.tellAgain(said)
		case <-ctx.Done():
			return mustWait, ctx.Err()
		}
	}
}
