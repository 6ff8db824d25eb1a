package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestExecsLeftByAKilledWorkerAreForgottenByTheNext kills the worker while the supervisor still keeps the files of
// ended execs. The next worker must make the supervisor remove these files.
func TestExecsLeftByAKilledWorkerAreForgottenByTheNext(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	const execs = 5
	w := f.Worker("w1", fleet.Role{CrashAt: "after-exec-end", CrashAfter: execs}) // before it forgets the last exec
	s := f.Create("kept")
	ctx := f.Context(time.Minute)
	left := func() []string {
		var files []string
		for _, dir := range f.Directories(w) {
			found, err := filepath.Glob(filepath.Join(dir, "run", "execs", "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range found { // the supervisor prepares empty files for the next exec
				if info, err := os.Stat(file); err == nil && info.Size() > 0 && filepath.Base(file) != ".sets" {
					files = append(files, file)
				}
			}
		}
		return files
	}
	for range execs {
		if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"head", "-c", "100000",
			"/dev/zero"}}); err != nil {
			t.Fatal(err)
		}
	}
	w.AwaitKilled(10 * time.Second)
	if n := len(left()); n == 0 {
		t.Fatal("no files were kept when the worker was killed")
	}
	w = w.Restart()
	r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, r, 0)
	f.Eventually(10*time.Second, "the execs are forgotten", func() error {
		if files := left(); len(files) > 0 {
			return fmt.Errorf("%d are left: %s", len(files), files[0])
		}
		return nil
	})
	f.Judge()
}
