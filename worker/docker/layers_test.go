package docker

import (
	"testing"

	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/boxfleet/boxfleet/protocol"
)

// An engine that downloads a layer twice sends these messages.
func TestMessagesAboutBytesDownloadedAgainShowNoProgress(t *testing.T) {
	l := newLayers()
	at := func(current int64) *jsonmessage.JSONProgress {
		return &jsonmessage.JSONProgress{Current: current, Total: 100}
	}
	for i, c := range []struct {
		id, status string
		progress   *jsonmessage.JSONProgress
		moved      bool
	}{
		{"1.0", "Pulling from tools", nil, false},
		{"a", "Pulling fs layer", nil, true},
		{"b", "Already exists", nil, true},
		{"a", "Waiting", nil, true},
		{"a", "Downloading", at(10), true},
		{"a", "Downloading", at(10), false},
		{"a", "Downloading", at(60), true},
		{"a", "Retrying in 5 seconds", nil, false},
		{"a", "Retrying in 4 seconds", nil, false},
		{"a", "Downloading", at(5), false},
		{"a", "Downloading", at(60), false},
		{"a", "Downloading", at(61), true},
		{"a", "Download complete", nil, true},
		{"a", "Extracting", at(50), true},
		{"a", "Extracting", at(50), false},
		{"a", "Pull complete", nil, true},
		{"", "Status: Downloaded newer image", nil, false},
	} {
		if moved := l.update(&jsonmessage.JSONMessage{ID: c.id, Status: c.status, Progress: c.progress}); moved != c.moved {
			t.Errorf("message %d, %q of layer %s: progress is %v, want %v", i, c.status, c.id, moved, c.moved)
		}
	}
	want := protocol.PullProgress{Image: "x", Done: 100, Total: 100, Layers: 2, LayersDone: 2, Try: 1}
	if got := l.progress("x"); got != want {
		t.Errorf("got the progress %+v, want %+v", got, want)
	}
}

func TestARetriedPullStartsWithoutProgress(t *testing.T) {
	l := newLayers()
	at := func(current int64) *jsonmessage.JSONMessage {
		return &jsonmessage.JSONMessage{ID: "a", Status: "Downloading",
			Progress: &jsonmessage.JSONProgress{Current: current, Total: 100}}
	}
	for try := 1; try <= 3; try++ {
		for _, current := range []int64{1, 50, 90} {
			if !l.update(at(current)) {
				t.Errorf("attempt %d: %d bytes do not count as progress", try, current)
			}
		}
		want := protocol.PullProgress{Image: "x", Done: 90, Total: 100, Layers: 1, Try: try}
		if got := l.progress("x"); got != want {
			t.Errorf("attempt %d: got the progress %+v, want %+v", try, got, want)
		}
		l.restart(try + 1)
	}
}
