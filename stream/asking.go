package stream

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Answer is the answer to a question about a silent other end, see [Config.Ask].
type Answer int

const (
	// Unknown means that there was no answer. The transport may be interrupted.
	Unknown Answer = iota
	// Reached means that the transport works, but the answer does not say whether the other end has the stream.
	Reached
	// Open means that the other end has the stream.
	Open
	// Gone means that the other end is there and does not have the stream.
	Gone
)

const (
	// askAfter is how long a ping stays unanswered before this end calls [Config.Ask].
	askAfter = time.Second
	// askEvery is the pause between two questions while the other end stays silent. It bounds how often one stream asks.
	askEvery = 3 * time.Second
	// lastWord is how long this end waits for a frame once the stream seems lost. The answer to a question may be wrong,
	// because another process may have the other end's name. So a stream whose other end still answers pings is kept.
	lastWord = time.Second
)

// asking is the state of an end that asks, with [Config.Ask], about a silent other end.
type asking struct {
	askAt      time.Time       // when to ask; zero: the other end is not silent
	quietSince time.Time       // when the other end fell silent while the transport worked
	lastAt     time.Time       // when the stream is lost if the other end stays silent; zero: it does not seem lost
	why        *protocol.Error // why the stream seems lost, if lastAt is set
}

var errGone = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
	"the worker does not have the stream any more: it restarted; open the stream again")

// suspect plans the first question, because a ping was sent, if this end can ask.
func (a *asking) suspect(canAsk bool, now time.Time) {
	if canAsk && a.askAt.IsZero() {
		a.askAt = now.Add(askAfter)
	}
}

// spokenTo ends every suspicion, because a frame of the other end has arrived.
func (a *asking) spokenTo(now time.Time) { *a = asking{quietSince: now} }

// interrupted forgets that the stream seems lost: silence means nothing while the transport does not work.
func (a *asking) interrupted(now time.Time) { a.quietSince, a.lastAt, a.why = now, time.Time{}, nil }

// answered takes the answer to a question.
func (m *machine) answered(a Answer, now time.Time) {
	if m.isOver() || m.askAt.IsZero() {
		return // a frame of the other end has arrived in the meantime
	}
	switch a {
	case Unknown, Open:
		m.interrupted(now)
	case Gone:
		m.owes.ping = m.seemsLost(errGone, now) || m.owes.ping
	case Reached:
		if quiet := now.Sub(m.quietSince); m.cfg.Silence > 0 && quiet >= m.cfg.Silence {
			m.owes.ping = m.seemsLost(silentFor(now.Sub(m.heardAt)), now) || m.owes.ping
		}
	}
}

// seemsLost plans the end of a stream whose other end shows no last sign of life. It reports whether to ask for one.
func (a *asking) seemsLost(why *protocol.Error, now time.Time) (first bool) {
	if first = a.lastAt.IsZero(); first {
		a.lastAt, a.why = now.Add(lastWord), why
	}
	return first
}

// ask acts when a time has come while the other end is silent: it ends a stream that seems lost, or asks again.
func (m *machine) ask(now time.Time) {
	if m.isOver() {
		return
	}
	if !m.lastAt.IsZero() && !now.Before(m.lastAt) {
		m.reset(m.why, now)
		return
	}
	if !m.askAt.IsZero() && !now.Before(m.askAt) {
		m.askAt, m.owes.question = now.Add(askEvery), true
	}
}

// takeQuestion reports whether [Config.Ask] must be called now. It returns true once for each question.
func (o *owed) takeQuestion() bool {
	due := o.question
	o.question = false
	return due
}

func silentFor(silence time.Duration) *protocol.Error {
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
		"the other end of the stream has been silent for %s", silence.Round(time.Millisecond))
}
