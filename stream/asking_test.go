package stream

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Times of the simulated client: as in package jetstream.
const (
	testPing    = 5 * time.Second
	testSilence = 20 * time.Second
	testOutage  = 60 * time.Second
	testSlack   = 2*askEvery + lastWord + askAfter + testPing // how much later than its cause a loss may be noticed
)

// TestALostEndIsNoticedSoonAndALivingOneIsKept runs a client and a worker over a transport that is cut off for less
// than a minute at a time. The worker may be killed, and another one may then take its name. Answers to questions are
// late, and wrong ones come from another process that claims the name. Time is simulated.
func TestALostEndIsNoticedSoonAndALivingOneIsKept(t *testing.T) {
	t.Parallel()
	killed, asked, wrong := 0, 0, 0
	for seed := range uint64(200) {
		s := newLossSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, killed after %s, back after %s, cut %v: %v", seed, s.killAt.Sub(s.began), s.backAfter, s.cuts,
				err)
		}
		asked, wrong = asked+s.asked, wrong+s.wrong
		if s.kills {
			killed++
		}
	}
	t.Logf("%d workers were killed; %d questions, %d wrong answers", killed, asked, wrong)
	if killed < 90 || wrong < 100 {
		t.Error("the simulation does not cover what it should")
	}
}

type lossSimulation struct {
	*simulation
	began     time.Time
	kills     bool
	killAt    time.Time
	backAfter time.Duration // when another worker takes the name; an hour: never
	cuts      []time.Duration
	answers   []lateAnswer
	liars     bool // another process answers that the stream is gone

	reachable    time.Time // since when the transport works
	asked, wrong int
}

type lateAnswer struct {
	at time.Time
	is Answer
}

func newLossSimulation(seed uint64) *lossSimulation {
	r := rand.New(rand.NewPCG(seed, 2))
	s := &lossSimulation{simulation: newSimulation(0), kills: seed%2 == 0, liars: seed%3 == 0, backAfter: time.Hour}
	s.random, s.flying, s.faults = r, nil, faults{delay: time.Duration(r.IntN(200)) * time.Millisecond}
	s.began, s.reachable = s.now, s.now
	s.killAt = s.now.Add(time.Duration(r.IntN(60_000)) * time.Millisecond)
	if r.IntN(3) > 0 {
		s.backAfter = time.Duration(r.IntN(30_000)) * time.Millisecond
	}
	frame := 1000 + r.IntN(60_000)
	window := 4 * frame
	client := Config{Frame: frame, TakeFrame: frame, Window: window, PeerWindow: window, Greet: true, Ping: testPing,
		Missed: int(testOutage/testPing) - 1, Silence: testSilence, Ask: func() {}}
	worker := Config{Frame: frame, TakeFrame: frame, Window: window, PeerWindow: window}
	for i, cfg := range []Config{client, worker} {
		s.ends[i] = &simulatedEnd{m: newMachine(cfg, s.now), act: s.now}
		if r.IntN(3) > 0 { // otherwise this end only waits
			s.ends[i].writes = make([]byte, r.IntN(5_000_000))
			s.ends[i].all = s.ends[i].writes
		}
	}
	for at := s.now.Add(time.Duration(r.IntN(40_000)) * time.Millisecond); r.IntN(3) > 0; {
		lasts := time.Duration(r.IntN(40_000)) * time.Millisecond
		s.push(event{at: at}, event{at: at.Add(lasts)})
		s.cuts = append(s.cuts, at.Sub(s.began), lasts)
		at = at.Add(lasts + 10*time.Second + time.Duration(r.IntN(40_000))*time.Millisecond)
	}
	return s
}

func (s *lossSimulation) run() error {
	const most = 5 * time.Minute
	client, worker := s.ends[0], s.ends[1]
	for end := s.began.Add(most); s.now.Before(end); {
		s.step()
		switch err := client.m.err; {
		case err == nil && s.kills && s.now.After(s.noticedBy()):
			return fmt.Errorf("after %s, the client has not noticed", s.now.Sub(s.killAt))
		case err == nil:
			continue
		case !s.kills || s.now.Before(s.killAt):
			return fmt.Errorf("after %s, the stream of a living worker ended: %v", s.now.Sub(s.began), err)
		case err.Code != protocol.Unavailable || err.Reason != protocol.ReasonStreamLost:
			return fmt.Errorf("the stream ended with %v", err)
		default:
			return nil
		}
	}
	if worker.m.err != nil {
		return fmt.Errorf("the worker's end failed: %v", worker.m.err)
	}
	return nil
}

// noticedBy returns until when the client must have noticed that its worker was killed.
func (s *lossSimulation) noticedBy() time.Time {
	if s.cut {
		return s.now
	}
	from := s.killAt
	if s.reachable.After(from) {
		from = s.reachable
	}
	by := from.Add(testSilence)
	if back := s.killAt.Add(s.backAfter); back.Before(by) && back.After(from) {
		by = back
	} else if !back.After(from) {
		by = from
	}
	return by.Add(testSlack)
}

// step lets a short time pass.
func (s *lossSimulation) step() {
	for i, e := range s.ends {
		if (i == 0 || !s.isDead()) && !s.now.Before(e.act) {
			s.program(e)
			e.m.eofWritten = false // the ends stay open
			e.act = s.now.Add(time.Duration(s.random.IntN(2000)) * time.Millisecond)
		}
		s.flush(i)
	}
	s.questions()
	was := s.cut
	s.advance()
	if was && !s.cut {
		s.reachable = s.now
	}
}

func (s *lossSimulation) isDead() bool { return s.kills && !s.now.Before(s.killAt) }

// flush drops what a dead worker would send or receive.
func (s *lossSimulation) flush(from int) {
	if s.isDead() {
		for s.ends[from].m.next(s.now) != nil {
			s.ends[from].m.using = nil
		}
		return
	}
	s.simulation.flush(from)
}

// questions answers what the client asks, after a while.
func (s *lossSimulation) questions() {
	m := s.ends[0].m
	if m.owes.takeQuestion() {
		s.asked++
		s.answers = append(s.answers, lateAnswer{s.now.Add(time.Duration(s.random.IntN(2000)) * time.Millisecond),
			s.answer()})
	}
	if !s.isDead() && s.liars && s.random.IntN(20) == 0 {
		s.wrong++
		s.answers = append(s.answers, lateAnswer{s.now, Gone})
	}
	late := s.answers[:0]
	for _, a := range s.answers {
		if a.at.After(s.now) {
			late = append(late, a)
			continue
		}
		if s.cut {
			a.is = Unknown
		}
		m.answered(a.is, s.now)
	}
	s.answers = late
}

func (s *lossSimulation) answer() Answer {
	switch {
	case s.cut:
		return Unknown
	case !s.isDead():
		return Open
	case s.now.Before(s.killAt.Add(s.backAfter)):
		return Reached
	}
	return Gone
}

// TestSilenceCountsOnlyWhileTheTransportWorks lets a transport be interrupted for 30 s. Then it works, but the other
// end stays away.
func TestSilenceCountsOnlyWhileTheTransportWorks(t *testing.T) {
	t.Parallel()
	for what, interrupt := range map[string]func(m *machine, now time.Time){
		"unnoticed": func(m *machine, now time.Time) { m.answered(Unknown, now) },
		"noticed":   func(m *machine, now time.Time) { m.reconnected(now) },
		"the other end cannot be heard, but has the stream": func(m *machine, now time.Time) { m.answered(Open, now) },
	} {
		began := time.Unix(1000, 0)
		m := newMachine(Config{Ping: testPing, Missed: int(testOutage/testPing) - 1, Silence: testSilence, Ask: func() {}},
			began)
		m.receive(words(typeWindow, 0, 1000), began)
		const interruption = 30 * time.Second
		lost := time.Duration(0)
		for after := time.Duration(0); after < testOutage && lost == 0; after += 100 * time.Millisecond {
			now := began.Add(after)
			m.tick(now)
			for m.next(now) != nil {
			}
			if m.owes.takeQuestion() {
				if after < interruption {
					interrupt(m, now)
				} else {
					m.answered(Reached, now)
				}
			}
			if m.err != nil {
				lost = after
			}
		}
		if lost < interruption-askEvery+testSilence || lost >= testOutage {
			t.Errorf("%s: the stream was lost after %s", what, lost)
		}
	}
}
