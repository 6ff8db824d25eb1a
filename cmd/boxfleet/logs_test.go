package main

import (
	"bytes"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/sdk"
)

func TestLogsPrintTheLastLinesOfBothStreams(t *testing.T) {
	now := time.Now()
	stored := []sdk.Chunk{{Stream: sdk.Stdout, Data: []byte("one\ntw"), At: now.Add(-time.Hour)},
		{Stream: sdk.Stderr, Data: []byte("err\n"), At: now.Add(-time.Hour)},
		{Stream: sdk.Stdout, Offset: 6, Data: []byte("o\nthree\nfo"), At: now}}
	arriving := []sdk.Chunk{stored[2], {Stream: sdk.Stdout, Offset: 14, Data: []byte("four\n")}}
	read := func(follow bool) iter.Seq2[sdk.Chunk, error] {
		return func(yield func(sdk.Chunk, error) bool) {
			for _, k := range stored {
				if !yield(k, nil) {
					return
				}
			}
			for _, k := range arriving {
				if follow && !yield(k, nil) {
					return
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		follow         bool
		tail           int
		since          time.Time
		stdout, stderr string
	}{
		"all":                             {tail: -1, stdout: "one\ntwo\nthree\nfo", stderr: "err\n"},
		"the last two":                    {tail: 2, stdout: "three\nfo"},
		"the last three":                  {tail: 3, stdout: "three\nfo", stderr: "err\n"},
		"none":                            {tail: 0},
		"only new output":                 {tail: 0, follow: true, stdout: "ur\n"},
		"the last line and new output":    {tail: 1, follow: true, stdout: "four\n"},
		"since a minute ago":              {tail: -1, since: now.Add(-time.Minute), stdout: "o\nthree\nfo"},
		"the last two since a minute ago": {tail: 2, since: now.Add(-time.Minute), stdout: "three\nfo"},
	} {
		var stdout, stderr bytes.Buffer
		cl := newProgram(nil, &stdout, &stderr).client
		if err := cl.printLogs(read, tc.follow, tc.tail, tc.since); err != nil || stdout.String() != tc.stdout ||
			stderr.String() != tc.stderr {
			t.Errorf("%s: got %q and %q, %v", name, stdout.String(), stderr.String(), err)
		}
	}
	many := newLastLines(10)
	for i := range 1000 {
		line := fmt.Sprintf("%04d\n", i)
		many.add(sdk.Chunk{Stream: sdk.Stdout, Offset: int64(5 * i), Data: []byte(line)})
	}
	if len(many.lines) != 10 || string(many.lines[0].Data) != "0990\n" || many.lines[0].Offset != 4950 {
		t.Errorf("got %d lines, the first %v", len(many.lines), many.lines[0])
	}
}

func TestALongTextIsCutAndTheCutIsMarked(t *testing.T) {
	for most, want := range map[int]string{-1: "", 0: "", 1: "…", 3: "sl…", 6: "sleep1", 7: "sleep1"} {
		if got := cut("sleep1", most); got != want {
			t.Errorf("%d: got %q", most, got)
		}
	}
}
