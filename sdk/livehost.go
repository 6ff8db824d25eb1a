package sdk

import (
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
)

// The worker of any host can publish live output under the name of any sandbox. The server proves only from which host
// the output comes. A client therefore takes live output only from the host that the sandbox is on. It reads all other
// output through a coordinator, which knows the hosts of the sandbox.

const (
	// maxHeld is how many chunks from other hosts a tail holds until it knows the sandbox's host.
	maxHeld = 16
	// A chunk from another host than the sandbox's makes a tail read the log. otherHostPause is the shortest pause
	// between two such reads, so that forged chunks cannot make a client read all the time.
	otherHostPause = time.Second
)

// liveChunk is a chunk with the id of the host from which it came.
type liveChunk struct {
	host string
	jetstream.Chunk
}

// takeLive takes a chunk from the host that the sandbox is on. A chunk from another host waits until a coordinator has
// named the host that the sandbox is on now.
func (t *tail) takeLive(k liveChunk) error {
	known := t.feed.host()
	if k.host == known {
		return t.take(k.Chunk)
	}
	if len(t.held) < maxHeld {
		t.held = append(t.held, k)
	}
	if known == "" || time.Since(t.asked) >= otherHostPause {
		t.asked = time.Now()
		t.mayHaveMissed()
	}
	return nil
}

// takeHeld takes the held chunks from the host that the sandbox is on, and drops the others.
func (t *tail) takeHeld() error {
	held, known := t.held, t.feed.host()
	t.held = nil
	for _, k := range held {
		if k.host != known {
			continue
		}
		if err := t.take(k.Chunk); err != nil {
			return err
		}
	}
	return nil
}

// host returns the id of the host that the sandbox is on, as far as the client knows.
func (f *feed) host() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hostID
}

// isOn records the host that the sandbox is on according to a handle or an answer. An empty host changes nothing. A
// handle may be old and name an earlier host, so the verifier takes its host from the history alone.
func (f *feed) isOn(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if host != "" {
		f.hostID = host
	}
}
