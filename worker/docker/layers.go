package docker

import (
	"sync"

	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/protocol"
)

// layers tracks the progress of a pull, layer by layer, from the engine's messages.
type layers struct {
	mu    sync.Mutex
	try   int
	found map[string]*layer // layers by their short id in the messages
}

type layer struct {
	stage                  int
	done, total, extracted int64 // bytes
}

// stages are the states of a layer, in order. Messages with other texts are ignored.
var stages = map[string]int{
	"Pulling fs layer": 1, "Waiting": 2, "Downloading": 3, "Verifying Checksum": 4, "Download complete": 5,
	"Extracting": 6, "Pull complete": complete, "Already exists": complete,
}

const complete = 7

func newLayers() *layers { return &layers{try: 1, found: map[string]*layer{}} }

// restart records that the pull is retried. An unfinished layer is downloaded from its first byte again, so restart
// discards the progress made before.
func (l *layers) restart(try int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.try = try
	clear(l.found)
}

// update applies a message, and reports whether the message shows progress: either a layer reached a later stage, or
// the engine has more bytes of a layer than before in this attempt. While the engine waits to retry a layer, and while
// it downloads the same bytes again, its messages show no progress.
func (l *layers) update(m *jsonmessage.JSONMessage) bool {
	stage := stages[m.Status]
	if stage == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.found[m.ID]
	if have == nil {
		have = &layer{}
		l.found[m.ID] = have
	}
	moved := stage > have.stage
	have.stage = max(have.stage, stage)
	switch p := m.Progress; {
	case p == nil:
	case m.Status == "Downloading":
		moved = moved || p.Current > have.done
		have.done, have.total = max(have.done, p.Current), max(have.total, p.Total)
	case m.Status == "Extracting":
		moved = moved || p.Current > have.extracted
		have.extracted = max(have.extracted, p.Current)
	}
	if stage > stages["Downloading"] {
		have.done = have.total
	}
	return moved
}

func (l *layers) progress(ref string) protocol.PullProgress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := protocol.PullProgress{Image: ref, Try: l.try}
	for _, have := range l.found {
		p.Layers++
		if have.stage == complete {
			p.LayersDone++
		}
		p.Done, p.Total = p.Done+protocol.Bytes(have.done), p.Total+protocol.Bytes(have.total)
	}
	return p
}

// reached records how many bytes of a layer were sent to the engine, and reports whether that is progress.
func (l *layers) reached(id string, done, total int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.found[id]
	if have == nil {
		have = &layer{stage: stages["Downloading"]}
		l.found[id] = have
	}
	moved := done > have.done
	have.done, have.total = max(have.done, done), total
	if done >= total {
		have.stage = complete
	}
	return moved
}
