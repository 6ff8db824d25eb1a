package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// gate holds requests back while the log accepts no appends. The server has acknowledged these requests, so they are
// neither refused nor dropped: they stay with this coordinator. Behind them, the lines of the tenants grow up to their
// limits. Requests that end something pass the gate: they make room, and may use the log's reserve.
//
//	open ──(an append says full or unavailable, or only the log's reserve is left)──► closed
//	closed: one request at a time is the probe ──(it appended something)──► open
type gate struct {
	log      logRoom
	announce func(why *protocol.Error) // announces why the gate is closed; a nil why announces that the gate is open
	turn     func()                    // called at each turn of run's loop

	turns chan struct{} // a request that receives from turns is the probe
	mu    sync.Mutex
	why   *protocol.Error // nil: open
	moved chan struct{}   // closed and replaced when the gate opens or closes, or the reason changes
	ended chan outcome    // outcome of the probe

	blamed   key // the last sandbox whose history did not answer
	blamedAt time.Time
}

// logRoom reports how much room the log has.
type logRoom interface {
	LogRoom(ctx context.Context) (jetstream.Room, error)
}

// outcome says how a decision has changed the log.
type outcome int

const (
	nothingAppended outcome = iota
	appended
	mustWait
)

const (
	probePause   = 250 * time.Millisecond // time between two probes
	roomPause    = time.Second            // time between two checks of the log's room, while the gate is open
	stallPause   = 5 * time.Second        // a decision that takes longer probably waits for the log
	repeatAfter  = 30 * time.Second       // time after which a client is told again that its request waits
	endingAtOnce = 64                     // how many requests that end something are decided concurrently
	restAtOnce   = 512                    // how many other requests are decided concurrently
)

func newGate(log logRoom, tell func(*protocol.Error)) *gate {
	return &gate{log: log, announce: tell, turn: func() {}, turns: make(chan struct{}), moved: make(chan struct{}),
		ended: make(chan outcome)}
}

// logUnavailable reports whether an error means that the log accepts no appends now. Such an error says nothing about
// the request.
func logUnavailable(err error) bool {
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

// closed returns why requests are held back, or nil if the gate is open. moved is closed when the answer changes.
func (g *gate) closed() (why *protocol.Error, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why, g.moved
}

// set closes the gate and records why. A nil why opens the gate.
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
		g.announce(why)
	}
}

// After the history of a sandbox did not answer, the gate remembers that sandbox for blameKept. If the history of
// another sandbox does not answer within this time, the log is the cause.
const blameKept = time.Minute

// blame is called when the events of a decision could not be appended. It closes the gate if the log is the cause. A
// full log says so in its error. An append or a read without an answer may concern only one sandbox, for example
// because its history is very long; the requests of other sandboxes must not wait then. If an append or a read got no
// answer, the log counts as the cause in two cases: a query for the log's room gets no answer either, or the histories
// of two sandboxes did not answer.
func (g *gate) blame(ctx context.Context, k key, why *protocol.Error) {
	if why.Code != protocol.ResourceExhausted && !g.logIsTheCause(ctx, k) {
		return
	}
	g.set(why)
}

// logIsTheCause reports whether the log is the reason why the history of a sandbox did not answer. It remembers the
// sandbox: when another sandbox's history does not answer either, soon afterwards, the log is the cause.
func (g *gate) logIsTheCause(ctx context.Context, k key) bool {
	if known := g.checkRoom(ctx); known == nil || known.RefusesNew() {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	another := g.blamed != key{} && g.blamed != k && time.Since(g.blamedAt) < blameKept
	g.blamed, g.blamedAt = k, time.Now()
	return another
}

// pass waits until a request may be decided. If it returns true, the request is the probe, and the caller must call
// [gate.reportProbe]. When the wait begins, and again from time to time, it calls the function say with the reason. It
// fails only if ctx ends.
func (g *gate) pass(ctx context.Context, verb string, say func(why *protocol.Error)) (probe bool, err error) {
	for {
		why, moved := g.closed()
		if why == nil || protocol.EndsWork(verb) {
			return false, ctx.Err()
		}
		say(why)
		again := time.NewTimer(repeatAfter)
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

// reportProbe passes the outcome of the probe to the goroutine of [gate.run].
func (g *gate) reportProbe(ctx context.Context, o outcome) {
	select {
	case g.ended <- o:
	case <-ctx.Done():
	}
}

// run opens and closes the gate until ctx ends.
func (g *gate) run(ctx context.Context) error {
	for {
		if err := g.watch(ctx); err != nil {
			return err
		}
		if err := g.probe(ctx); err != nil {
			return err
		}
		g.set(nil)
	}
}

// watch waits until the gate is closed. Either [gate.blame] closes it, or watch itself does, when only the log's
// reserve is left.
func (g *gate) watch(ctx context.Context) error {
	tick := time.NewTicker(roomPause)
	defer tick.Stop()
	for {
		g.turn()
		why, moved := g.closed()
		if why != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		case <-tick.C:
			g.checkRoom(ctx)
		}
	}
}

// probe lets one request after another try to append, and returns when an append has succeeded. Before each attempt, it
// asks how much room the log has: a successful append does not show that more than the log's reserve is left.
func (g *gate) probe(ctx context.Context) error {
	said := time.Now()
	for pause := probePause; ; {
		g.turn()
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = probePause
		if time.Since(said) >= protocol.StatusPeriod {
			g.announceAgain(&said)
		}
		known := g.checkRoom(ctx)
		if known != nil && known.RefusesNew() {
			continue
		}
		select {
		case g.turns <- struct{}{}:
		case <-time.After(probePause):
			if known != nil { // no request waits, and the log has room: open the gate
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

// checkRoom asks the log for its room, and returns nil if the log does not answer. It closes the gate if only the
// reserve is left.
func (g *gate) checkRoom(ctx context.Context) *jetstream.Room {
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

func (g *gate) announceAgain(said *time.Time) {
	why, _ := g.closed()
	g.announce(why)
	*said = time.Now()
}

// awaitProbe waits for the outcome of the probe. The wait may last until the probe's append times out.
func (g *gate) awaitProbe(ctx context.Context, said *time.Time) (outcome, error) {
	tick := time.NewTicker(protocol.StatusPeriod)
	defer tick.Stop()
	for {
		select {
		case o := <-g.ended:
			return o, nil
		case <-tick.C:
			g.turn()
			g.announceAgain(said)
		case <-ctx.Done():
			return mustWait, ctx.Err()
		}
	}
}
