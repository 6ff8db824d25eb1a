package sdk

import (
	"slices"
	"strconv"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// After a stream was lost, the next one begins with all ports. The caller learns what has changed, and nothing twice.
func TestAWatchOfPortsTellsWhatChangedBetweenStreams(t *testing.T) {
	listening := func(port int) PortEvent { return PortEvent{Kind: protocol.PortListening, Port: port} }
	closed := func(port int) PortEvent { return PortEvent{Kind: protocol.PortClosed, Port: port} }
	watching := PortEvent{Kind: protocol.PortWatching}
	var got []string
	w := portWatch{known: map[int]bool{}, yield: func(e PortEvent) bool {
		got = append(got, string(e.Kind)+" "+strconv.Itoa(e.Port))
		return true
	}}
	for _, stream := range [][]PortEvent{
		{listening(1), listening(2)}, // lost before it has told all
		{listening(2), listening(3), watching, listening(4), closed(2)},
		{listening(3), listening(5), watching, closed(5), listening(4)},
	} {
		present := map[int]bool{}
		for _, e := range stream {
			if !w.event(e, &present) {
				t.Fatal("the watch ended")
			}
		}
	}
	want := []string{"listening 1", "listening 2", "listening 3", "closed 1", "watching 0", "listening 4", "closed 2",
		"listening 5", "closed 4", "closed 5", "listening 4"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
