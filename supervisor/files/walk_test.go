package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A link that replaces a directory between the check and the open is not followed.
func TestAWalkFollowsNoLinkThatReplacesADirectory(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	err := errors.Join(os.Mkdir(filepath.Join(top, "d"), 0o755),
		os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	var seen, skipped []string
	w := walk{ctx: t.Context(), depth: -1,
		visit:   func(e *entry) error { seen = append(seen, e.rel); return nil },
		skipped: func(rel string, _ error) { skipped = append(skipped, rel) },
		descend: func(*entry) bool {
			if err := errors.Join(os.Remove(filepath.Join(top, "d")), os.Symlink(outside, filepath.Join(top, "d"))); err != nil {
				t.Error(err)
			}
			return true
		}}
	if err := w.below(top); err != nil {
		t.Fatal(err)
	}
	if strings.Join(seen, " ") != "d" || strings.Join(skipped, " ") != "d" {
		t.Errorf("visited %q and left out %q, want d in both", seen, skipped)
	}
}
