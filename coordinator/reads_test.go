package coordinator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAPageOfLargeSandboxesFitsIntoOneMessage(t *testing.T) {
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	large := protocol.SandboxSpec{Image: "i", Env: map[string]string{"A": strings.Repeat("x", 120<<10)}, Command: []string{"x", strings.Repeat("y", 100<<10)}}
	want := map[string]bool{}
	for i := range 9 {
		id := fmt.Sprint("s", i)
		want[id] = true
		if r := d.request(protocol.VerbCreate, id, id, protocol.Request{Sandbox: &large}); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	q := protocol.Query{}
	for pages := 1; ; pages++ {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointList, &q)
		if err != nil || len(reply.Sandboxes) == 0 || pages > 9 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, b := range reply.Sandboxes {
			if !want[b.ID] {
				t.Errorf("%s is there twice", b.ID)
			}
			delete(want, b.ID)
		}
		if q.Page = reply.Next; q.Page == "" {
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("%v are missing", want)
	}
}
