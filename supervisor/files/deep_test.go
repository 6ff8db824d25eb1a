package files

import (
	"os"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestADeepTreeIsSearched(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+strings.Repeat("/d", 1000), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+strings.Repeat("/d", 1000)+"/bottom", []byte("needle"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := served(t, "/")
	reply := ask(t, c, control.FileCall{Grep: &protocol.FileGrep{Path: dir, Expression: "needle"}})
	if reply.Error != nil || len(reply.Matches.Matches) != 1 {
		t.Errorf("found %+v, %v", reply.Matches, reply.Error)
	}
}
