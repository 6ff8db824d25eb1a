package sdk

import (
	"bytes"
	"errors"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// endedExec returns the last event of an exec that printed text, in the form that workers append.
func endedExec(text string) *protocol.Event {
	return &protocol.Event{Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished,
		StdoutBytes: int64(len(text)), StdoutSHA256: protocol.OutputHash([]byte(text))}}
}

// readEnded stores text as the output of an exec whose last event is e, and reads the output from an offset on.
func readEnded(t *testing.T, text string, from int64, e *protocol.Event) (string, error) {
	t.Helper()
	c, _, ctx := connectedToItsOwnServer(t)
	done, err := c.conn.PublishOutput(outputHost, c.tenant, "s", "x",
		jetstream.Chunk{Stream: Stdout, Data: []byte(text), NextStdout: int64(len(text))})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	out := &destinations{stdout: destination{w: &got}}
	tail, err := startTail(c, "s", "x", out, false)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	tail.skipTo(map[string]int64{Stdout: from})
	_, err = out.result(ctx, tail, e)
	return got.String(), err
}

func TestOutputThatDiffersFromItsHashIsAnError(t *testing.T) {
	t.Parallel()
	const printed = "the output"
	inline := func(text string) *protocol.Event {
		e := endedExec(printed)
		e.Exec.Inline, e.Exec.Stdout = true, []byte(text)
		return e
	}
	unknown := endedExec(printed)
	unknown.Exec.StdoutSHA256 = ""
	for what, c := range map[string]struct {
		stored string
		from   int64
		end    *protocol.Event
		differ bool
	}{
		"what was printed":                {printed, 0, endedExec(printed), false},
		"as many other bytes":             {"the 0utput", 0, endedExec(printed), true},
		"inline":                          {"-", 0, inline(printed), false},
		"other inline bytes":              {"-", 0, inline("the 0utput"), true},
		"other bytes, read from the next": {"the 0utput", 1, endedExec(printed), false},
		"other bytes, unknown hash":       {"the 0utput", 0, unknown, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got, err := readEnded(t, c.stored, c.from, c.end)
			differs := errors.Is(err, &Error{Code: protocol.Internal, Reason: protocol.ReasonOutputDiffers})
			if differs != c.differ || !differs && err != nil {
				t.Errorf("read %q with the error %v; want the reason output_differs: %v", got, err, c.differ)
			}
		})
	}
}
