package coordinator

import (
	"fmt"
	"slices"
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

func TestAFleetOfManyHostsIsListed(t *testing.T) {
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	const n = 40
	for i := range n { // 1.2 MB in all
		host := &protocol.Host{Worker: fmt.Sprintf("w%02d", i), HostID: fmt.Sprint("h", i), Labels: map[string]string{"notes": strings.Repeat("x", 30<<10)}}
		if err := d.conn.RegisterHost(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (workers []string) {
		for q := (protocol.Query{}); ; {
			reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointHosts, &q)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range reply.Hosts {
				workers = append(workers, h.Worker)
			}
			if q.Page = reply.Next; q.Page == "" {
				return workers
			}
		}
	}
	d.eventually("every host is listed", func() bool { return len(list()) >= n })
	if workers := list(); !slices.IsSorted(workers) || len(slices.Compact(workers)) != n {
		t.Errorf("the hosts are %q", workers)
	}
}
