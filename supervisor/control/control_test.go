package control_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestFrames_AreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	code := 3
	want := []control.Notice{
		{Hello: &control.Hello{Version: 1, Boot: "b", Started: time.Unix(5, 6).UTC(),
			Execs: []control.ExecStatus{{ID: "e"}}, More: true}},
		{Result: &control.Result{ID: "e", ExitCode: &code, Inline: true, Stdout: []byte{0, 255},
			Ended: time.Unix(7, 8).UTC()}},
		{Output: &control.Output{ID: "e", Stdout: 1 << 40}},
	}
	var frames []byte
	for i := range want {
		frames = control.Append(frames, &want[i])
	}
	r := bytes.NewReader(frames)
	var scratch []byte
	for i := range want {
		var got control.Notice
		var err error
		if scratch, err = control.Read(r, control.MaxNotice, scratch, &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(control.Append(nil, &got), control.Append(nil, &want[i])) {
			t.Errorf("notice %d: got %+v, want %+v", i, got, want[i])
		}
	}
	if _, err := control.Read(r, control.MaxNotice, scratch, &control.Notice{}); err != io.EOF {
		t.Errorf("reading after the last frame: got %v, want EOF", err)
	}
}

func TestFrames_ThatAreTooLargeAreRefusedBeforeTheyAreRead(t *testing.T) {
	t.Parallel()
	header := []byte{0x7f, 0xff, 0xff, 0xff}
	scratch, err := control.Read(bytes.NewReader(header), control.MaxNotice, nil, &control.Notice{})
	if err == nil || err == io.ErrUnexpectedEOF || cap(scratch) > control.MaxNotice {
		t.Errorf("a frame of 2 GiB: got %v with a buffer of %d bytes, want a refusal", err, cap(scratch))
	}
}

func FuzzRead(f *testing.F) {
	f.Add(control.Append(nil, &control.Notice{Output: &control.Output{ID: "e", Stdout: 1}}))
	f.Add(control.Append(nil, &control.Command{Start: &control.Start{ID: "e", Argv: []string{"a"}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Reading random data may return an error, but must not panic.
		_, _ = control.Read(bytes.NewReader(data), 1<<10, nil, &control.Notice{})
		_, _ = control.Read(bytes.NewReader(data), 1<<10, nil, &control.Command{})
		_, _ = control.Open(make([]byte, 32), "e", data)
	})
}

func TestASupervisorHasRoomForMoreExecsThanMayBeActive(t *testing.T) {
	if control.MaxExecs < 2*protocol.MaxActiveExecs {
		t.Errorf("a supervisor has room for %d execs, want at least twice the %d that may be active", control.MaxExecs,
			protocol.MaxActiveExecs)
	}
}
