package progress

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// log records the phases of each appended message.
type log [][]string

func (l *log) append(pending []protocol.Event) error {
	var m []string
	for _, e := range pending {
		m = append(m, e.Details.Phase)
	}
	*l = append(*l, m)
	return nil
}

// create enters phases, stays in each for the given duration, and then appends the message with the result.
func create(p *Phases, each ...time.Duration) (messages log) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx, func() { _ = p.Append(messages.append) }) // messages.append never fails
	}()
	for i, d := range each {
		p.Enter(names[i], time.Now())
		time.Sleep(d)
	}
	stop()
	<-ended
	_ = p.Append(messages.append) // messages.append never fails
	return messages
}

func TestAShortCreateAppendsItsPhasesWithItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := create(Begin(""), 10*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond)
		if len(got) != 1 || !slices.Equal(got[0], names) {
			t.Errorf("the messages have the phases %q, want one message with all phases", got)
		}
	})
}

func TestALongCreateAppendsItsPhasesWhileItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := create(Begin(""), 10*time.Millisecond, 700*time.Millisecond, 700*time.Millisecond, 700*time.Millisecond)
		if want := (log{{"image", "network"}, {"container", "start"}}); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("the messages have the phases %q, want %q", got, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		got := create(Begin(""), time.Minute, time.Minute, time.Second, time.Minute)
		if want := (log{{"image"}, {"network"}, {"container"}, {"start"}, nil}); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("the messages have the phases %q, want %q", got, want)
		}
	})
}

func TestAPhaseIsEnteredOnce(t *testing.T) {
	p := Begin("network")
	for _, phase := range []string{"image", "network", "container", "image", "container"} {
		p.Enter(phase, time.Now())
	}
	var l log
	if err := p.Append(l.append); err != nil || !slices.Equal(l[0], []string{"container"}) || p.Current() != "container" {
		t.Errorf("appended %q (%v), current phase %s", l, err, p.Current())
	}
}

func TestPhasesThatCouldNotBeAppendedStayPending(t *testing.T) {
	p := Begin("")
	p.Enter("image", time.Now())
	away := errors.New("away")
	if err := p.Append(func([]protocol.Event) error { return away }); err != away {
		t.Fatal(err)
	}
	p.Enter("network", time.Now())
	var l log
	if err := errors.Join(p.Append(l.append), p.Append(l.append)); err != nil || len(l) != 2 ||
		!slices.Equal(l[0], []string{"image", "network"}) || len(l[1]) > 0 {
		t.Errorf("appended %q (%v)", l, err)
	}
}

func TestPhasesInTheLogAreNotAppendedAgain(t *testing.T) {
	p := Begin("")
	for _, phase := range names {
		p.Enter(phase, time.Now())
	}
	for known, want := range map[string][]string{"": names, "network": {"container", "start"}, "start": nil} {
		var l log
		if err := p.Append(func(pending []protocol.Event) error {
			_ = l.append(Missing(pending, known)) // l.append never fails
			return errors.New("again")
		}); err == nil || !slices.Equal(l[0], want) {
			t.Errorf("with the phase %q in the log: appended %q, want %q", known, l[0], want)
		}
	}
}
