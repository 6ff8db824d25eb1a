package supervise_test

import (
	"bytes"
	"testing"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestX6_OutputIsAnnouncedWhileTheExecRuns(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", "echo one; echo two >&2; exec sleep 1000"}})
	s.await("both streams", func() bool {
		n := len(s.outputs[id])
		return n > 0 && s.outputs[id][n-1] == control.Output{ID: id, Stdout: 4, Stderr: 4}
	})
	if out, errs := s.output(id, "stdout"), s.output(id, "stderr"); out != "one\n" || errs != "two\n" {
		t.Errorf("while the exec runs, its files contain %q and %q", out, errs)
	}
	s.cancel(id, 0)
	r := s.end(id)
	if !r.Cancelled || string(r.Stdout) != "one\n" || string(r.Stderr) != "two\n" {
		t.Errorf("the exec ended with %+v, want cancelled with the complete output", r)
	}
}

func TestX7_OutputIsBytes(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	var table []byte
	for i := range 256 * 300 {
		table = append(table, byte(i))
	}
	for _, size := range []int{0, 1, 256, 65535, 65536, len(table)} {
		id := s.start(control.Start{Argv: []string{"cat"}, Stdin: table[:size], InlineLimit: 1 << 20})
		r := s.end(id)
		if !bytes.Equal(r.Stdout, table[:size]) || r.StdoutBytes != int64(size) || !r.Inline {
			t.Errorf("an exec that printed %d bytes has a result with %d bytes, inline: %t", size, len(r.Stdout), r.Inline)
		}
		if got := s.output(id, "stdout"); got != string(table[:size]) {
			t.Errorf("an exec that printed %d bytes has a file with %d bytes, or other content", size, len(got))
		}
	}
}

func TestTheResultSaysThatOutputIsMissingBecauseOfAFullDisk(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{disk: "256k"})
	script := []string{"sh", "-c", "head -c 1000000 /dev/zero; echo end"}
	r := s.end(s.start(control.Start{Argv: script}))
	if code(r) != "0" || !r.Truncated || !r.DiskFull || r.StdoutBytes == 0 || r.StdoutBytes > 256<<10 {
		t.Errorf("on a full disk, the exec ended with %+v", r)
	}
	if cut := s.exec(control.Start{Argv: []string{"true"}, OutputLimit: 10}); cut.DiskFull {
		t.Errorf("an exec that printed nothing ended with %+v, want no full disk", cut)
	}
}

func TestX8_OutputPastTheCapIsDroppedAndMarked(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	script := []string{"sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"}
	id := s.start(control.Start{Argv: script, OutputLimit: 1_000_001})
	r := s.end(id)
	if code(r) != "0" || !r.Truncated || r.StdoutBytes != 1_000_001 || r.StderrBytes != 4 || r.Inline {
		t.Errorf("with more output than its limit, the exec ended with %+v", r)
	}
	if n := len(s.output(id, "stdout")); n != 1_000_001 {
		t.Errorf("the file for stdout has %d bytes, want 1,000,001", n)
	}
	exact := s.exec(control.Start{Argv: []string{"head", "-c", "4096", "/dev/zero"}, OutputLimit: 4096})
	if exact.Truncated || exact.StdoutBytes != 4096 {
		t.Errorf("with exactly as much output as its limit, the exec ended with %+v", exact)
	}
}

func TestX8_ASlowWorkerDoesNotSlowAProcess(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	ended := make(chan control.Result, 100)
	s := newSandbox(t, option{onEnd: func(r control.Result) {
		ended <- r
		<-block
	}})
	defer close(block)
	s.start(control.Start{Argv: []string{"true"}})
	<-ended // from here on, the worker's callbacks block
	id := s.start(control.Start{Argv: []string{"sh", "-c", "head -c 5000000 /dev/zero"}})
	s.waitForRecord(id)
	s.start(control.Start{Argv: []string{"true"}}) // calls are answered although the callbacks block
}
