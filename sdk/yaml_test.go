package sdk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// A source that is not there ends the call where it uploads, with everything checked.
func TestYAMLPutsFilesIntoOneDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.ReplaceAll("image: one\ncopies: ['DIR/gone:/gone', 'DIR/a:/x/', 'DIR/b:/x/']\n", "DIR", dir)
	_, err := specFromYAML(t.Context(), new(Client), &settings{yaml: []byte(text)}, SandboxSpec{})
	if protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("want that gone is not found, got %v", err)
	}
}
