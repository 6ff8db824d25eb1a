package streams

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheWirePageHasTheLimitOfASandbox(t *testing.T) {
	page, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("the %dth open operation or stream of a sandbox", perSandbox+1)
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/wire.md does not say that a worker refuses %s", want)
	}
}
