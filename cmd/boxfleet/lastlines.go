package main

import (
	"bytes"

	"github.com/boxfleet/boxfleet/sdk"
)

// lastLines keeps the last lines of a command's output, of both streams, in the order in which they began.
type lastLines struct {
	most  int
	lines []*sdk.Chunk
	open  map[string]*sdk.Chunk // by stream: the line that has no end yet
	ends  map[string]int64      // by stream: the offset behind all that was added
}

func newLastLines(most int) *lastLines {
	return &lastLines{most: most, open: map[string]*sdk.Chunk{}, ends: map[string]int64{}}
}

// add adds a piece of output.
func (l *lastLines) add(k sdk.Chunk) {
	if l.ends[k.Stream] != k.Offset { // something is missing between
		delete(l.open, k.Stream)
	}
	for data, at := k.Data, k.Offset; len(data) > 0; {
		n := bytes.IndexByte(data, '\n') + 1
		ended := n > 0
		if !ended {
			n = len(data)
		}
		line := l.open[k.Stream]
		if line == nil {
			line = &sdk.Chunk{Stream: k.Stream, Offset: at, At: k.At}
			l.open[k.Stream] = line
			l.keep(line)
		}
		line.Data = append(line.Data, data[:n]...)
		if ended {
			delete(l.open, k.Stream)
		}
		data, at = data[n:], at+int64(n)
	}
	l.ends[k.Stream] = k.Offset + int64(len(k.Data))
}

// keep keeps a line, and forgets the first where there are too many.
func (l *lastLines) keep(line *sdk.Chunk) {
	if l.most == 0 {
		return
	}
	if len(l.lines) == l.most {
		l.lines[0] = nil
		l.lines = l.lines[1:]
	}
	l.lines = append(l.lines, line)
}
