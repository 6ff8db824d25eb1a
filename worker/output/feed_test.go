package output

import "testing"

// The last chunk in the log says where the streams end, and a restarted worker continues there. Earlier chunks may be
// missing if they were in flight together with the last chunk.
func TestChunkCountsOnlyAcknowledgedBytesAsPublished(t *testing.T) {
	p := &feed{streams: [2]stream{{published: 100}, {base: 1000, published: 7}}}
	for _, c := range []struct {
		stream         int
		at             int64
		stdout, stderr int64
	}{
		{0, 100, 103, 1007}, {0, 103, 100, 1007}, {1, 7, 100, 1010}, {1, 10, 100, 1007},
	} {
		k := p.chunk(c.stream, c.at, []byte("abc"))
		if k.NextStdout != c.stdout || k.NextStderr != c.stderr || k.Offset != p.streams[c.stream].base+c.at {
			t.Errorf("the chunk of %s at %d has the offset %d and says that the streams end at %d and %d, want %d and %d",
				names[c.stream], c.at, k.Offset, k.NextStdout, k.NextStderr, c.stdout, c.stderr)
		}
	}
}
