package supervise_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// filesOfExecs returns the names of the files of all execs.
func (s *sandbox) filesOfExecs() map[string]bool {
	s.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(s.dir, "run/execs/*.*.*"))
	names := map[string]bool{}
	for _, p := range paths {
		names[filepath.Base(p)] = true
	}
	return names
}

func (s *sandbox) forget(id string) {
	s.t.Helper()
	if err := s.link.Forget(s.t.Context(), id); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sandbox) begins(id string) string {
	s.t.Helper()
	begin, err := supervise.FilesOf(s.run, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return begin
}

// If nothing was written to the files of an exec, the next exec uses them, so the directory does not grow.
func TestSets_ExecsThatPrintNothingMakeNoFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	var first map[string]bool
	for i := range 20 {
		id := fmt.Sprintf("quiet-%d", i)
		if r := s.exec(control.Start{ID: id, Argv: []string{"true"}}); code(r) != "0" {
			t.Fatalf("exec %s ended with exit code %s, want 0", id, code(r))
		}
		s.forget(id)
		if i == 0 {
			first = s.filesOfExecs()
		}
	}
	if now := s.filesOfExecs(); len(first) != control.ExecFiles || len(now) != control.ExecFiles {
		t.Errorf("after the first exec, the files are %v, and after the last, %v; want %d each time", first, now,
			control.ExecFiles)
	}
}

// Files to which any process has written are never used for another exec.
func TestSets_AFileWithContentIsNotReused(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for _, c := range []struct {
		id   string
		run  control.Start
		wait bool // wait for the exit record
	}{
		{"stdout", control.Start{Argv: []string{"sh", "-c", "echo secret"}}, false},
		{"stderr", control.Start{Argv: []string{"sh", "-c", "echo secret >&2"}}, false},
		{"record", control.Start{Argv: []string{"true"}}, true},
		{"never-began", control.Start{Argv: []string{"/absent"}}, false},
	} {
		c.run.ID = c.id
		s.exec(c.run)
		if c.wait {
			s.waitForRecord(c.id)
		}
		kept, err := supervise.OpenOutput(s.run, c.id, "stdout")
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		before := s.begins(c.id)
		s.forget(c.id)
		next := "after-" + c.id
		s.exec(control.Start{ID: next, Argv: []string{"sh", "-c", "echo mine"}})
		if after := s.begins(next); after == before {
			t.Errorf("the exec after %s has the same files", c.id)
		}
		if got := s.output(next, "stdout"); got != "mine\n" {
			t.Errorf("the exec after %s has the output %q", c.id, got)
		}
		want := ""
		if c.id == "stdout" {
			want = "secret\n"
		}
		if data, err := io.ReadAll(kept); err != nil || string(data) != want {
			t.Errorf("the open file of exec %s has the content %q, want %q; error %v", c.id, data, want, err)
		}
		s.forget(next)
	}
}

// An exec may still run and write after its worker has forgotten it.
func TestSets_ARunningExecKeepsItsFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.start(control.Start{ID: "runs", Argv: []string{"sh", "-c",
		"while [ ! -e /tmp/go ]; do sleep 0.02; done; echo late"}})
	before := s.begins("runs")
	s.forget("runs")
	s.exec(control.Start{ID: "next", Argv: []string{"true"}})
	if s.begins("next") == before {
		t.Error("the next exec has the files of an exec that still runs")
	}
	s.sh("touch /tmp/go")
	s.end("runs")
	if got := s.output("next", "stdout"); got != "" {
		t.Errorf("an exec that printed nothing has the output %q", got)
	}
}

// The next worker knows to which exec the files belong, even if the supervisor is not connected.
func TestSets_TheNextWorkerFindsTheFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.exec(control.Start{ID: "spare", Argv: []string{"true"}})
	s.forget("spare")
	s.start(control.Start{ID: "runs", Argv: []string{"sh", "-c",
		"while [ ! -e /tmp/go ]; do sleep 0.02; done; echo late; exit 7"}})
	s.link.Close()
	again := "new"
	s.listen(control.Welcome{Key: s.key}, nil)
	s.link.Expect(s.pid)
	s.exec(control.Start{ID: again, Argv: []string{"sh", "-c", "touch /tmp/go; echo other"}})
	s.await("the end of runs", func() bool { _, ended := s.results["runs"]; return ended })
	s.waitForRecord("runs")
	if s.begins(again) == s.begins("runs") {
		t.Error("two execs have the same files")
	}
	s.link.Close()
	record, err := supervise.ReadRecord(s.run, s.key, "runs")
	if err != nil || code(record.Result) != "7" {
		t.Errorf("reading the exit record of runs: got %+v and error %v, want exit code 7", record, err)
	}
	for id, want := range map[string]string{"runs": "late\n", again: "other\n"} {
		if got := s.output(id, "stdout"); got != want {
			t.Errorf("the output of exec %s is %q, want %q", id, got, want)
		}
	}
}

// The previous version named the files after their execs.
func TestSets_FilesNamedAfterTheirExecsAreReadAndRemoved(t *testing.T) {
	t.Parallel()
	run := openRun(t)
	key, zero := make([]byte, 32), 0
	dir := filepath.Join(run.Name(), control.ExecsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"old.stdout": []byte("before"), "old.stderr": nil,
		"old.exit": control.Seal(key, control.Record{Boot: "b", Result: control.Result{ID: "old", ExitCode: &zero}}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := supervise.OpenOutput(run, "old", "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if data, _ := io.ReadAll(file); string(data) != "before" {
		t.Errorf("the output is %q", data)
	}
	if r, err := supervise.ReadRecord(run, key, "old"); err != nil || code(r.Result) != "0" {
		t.Errorf("reading the exit record: got %+v and error %v, want exit code 0", r, err)
	}
	if err := supervise.RemoveExec(run, "old"); err != nil {
		t.Error(err)
	}
	if _, err := supervise.OpenOutput(run, "old", "stdout"); protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("opening the output of a removed exec: got %v, want not_found", err)
	}
}

// Under an older supervisor, a process of the sandbox may have created anything under the table's name.
func TestSets_AHostileTableIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(table string) error{
		"link":      func(table string) error { return os.Symlink("/etc/passwd", table) },
		"directory": func(table string) error { return os.Mkdir(table, 0o700) },
		"file with garbage": func(table string) error {
			return os.WriteFile(table, []byte(fmt.Sprint(os.Environ())), 0o600)
		},
		"huge file": func(table string) error { return os.WriteFile(table, nil, 0o600) },
	} {
		run := openRun(t)
		dir := filepath.Join(run.Name(), control.ExecsDir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		table := filepath.Join(dir, ".sets")
		if err := make(table); err != nil {
			t.Fatal(err)
		}
		if name == "huge file" {
			if err := os.Truncate(table, 1<<40); err != nil {
				t.Fatal(err)
			}
		}
		link, err := supervise.Listen(supervise.Config{ControlDir: t.TempDir(), Run: run,
			Welcome: control.Welcome{Key: []byte("key")}})
		if err != nil {
			t.Errorf("listening with a table that is a %s: %v", name, err)
			continue
		}
		link.Close()
		if f, err := supervise.OpenOutput(run, "e", "stdout"); err == nil {
			t.Errorf("with a table that is a %s, a missing exec has the output file %s", name, f.Name())
			f.Close()
		}
	}
}
