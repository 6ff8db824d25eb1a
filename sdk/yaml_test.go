package sdk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// The call passes all checks. It ends at the upload, because the source does not exist.
func TestYAMLMayCopyTwoFilesIntoOneDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.ReplaceAll("image: one\ncopies: ['DIR/gone:/gone', 'DIR/a:/x/', 'DIR/b:/x/']\n", "DIR", dir)
	_, err := specFromYAML(t.Context(), new(Client), &settings{yaml: []byte(text)}, SandboxSpec{})
	if protocol.CodeOf(err) != protocol.NotFound {
		t.Errorf("got %v, want not_found for the missing source", err)
	}
}
