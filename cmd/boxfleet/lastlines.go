package main

import (
	"bytes"

	"github.com/boxfleet/boxfleet/sdk"
)

// lastLines keeps the last lines of a command's stdout and stderr, in the order in which the lines started.
type lastLines struct {
	most  int
	lines []*sdk.Chunk
	open  map[string]*sdk.Chunk // for each stream, the line that has not ended yet
	ends  map[string]int64      // for each stream, the offset after the last byte added
}

func newLastLines(most int) *lastLines {
	return &lastLines{most: most, open: map[string]*sdk.Chunk{}, ends: map[string]int64{}}
}

// add adds a chunk of output.
func (l *lastLines) add(k sdk.Chunk) {
	if l.ends[k.Stream] != k.Offset { // bytes are missing, so the open line stays incomplete
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
			l.push(line)
		}
		line.Data = append(line.Data, data[:n]...)
		if ended {
			delete(l.open, k.Stream)
		}
		data, at = data[n:], at+int64(n)
	}
	l.ends[k.Stream] = k.Offset + int64(len(k.Data))
}

// push appends a line. If there are too many lines, it drops the oldest.
func (l *lastLines) push(line *sdk.Chunk) {
	if l.most == 0 {
		return
	}
	if len(l.lines) == l.most {
		l.lines[0] = nil
		l.lines = l.lines[1:]
	}
	l.lines = append(l.lines, line)
}
