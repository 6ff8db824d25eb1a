package worker

import (
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
)

// A worker that comes back goes on from the last chunk that is stored. Chunks before it may be
// missing, where they were on their way at once.
func TestAChunkVouchesOnlyForWhatIsAcknowledgedBeforeIt(t *testing.T) {
	p := &publisher{out: outputStream{published: 100}, err: outputStream{published: 7}}
	for _, c := range []struct {
		stream         string
		at             int64
		stdout, stderr int64
	}{
		{jetstream.Stdout, 100, 103, 7}, {jetstream.Stdout, 103, 100, 7}, {jetstream.Stderr, 7, 100, 10}, {jetstream.Stderr, 10, 100, 7},
	} {
		k := p.chunk(c.stream, c.at, []byte("abc"))
		if k.NextStdout != c.stdout || k.NextStderr != c.stderr || k.Offset != c.at {
			t.Errorf("%s at %d: %+v", c.stream, c.at, k)
		}
	}
}
