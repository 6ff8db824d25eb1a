package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAPageOfLargeSandboxesFitsIntoOneMessage(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	large := protocol.SandboxSpec{Image: "i", Env: map[string]string{"A": strings.Repeat("x", 120<<10)},
		Command: []string{"x", strings.Repeat("y", 100<<10)}}
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
				t.Errorf("%s is listed twice", b.ID)
			}
			delete(want, b.ID)
		}
		if q.Page = reply.Next; q.Page == "" {
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("the sandboxes %v are missing in the list", want)
	}
}

func TestAFleetOfManyHostsIsListed(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	const n = 40
	for i := range n { // 1.2 MB in all
		host := &protocol.Host{Worker: fmt.Sprintf("w%02d", i), HostID: fmt.Sprint("h", i),
			Labels: map[string]string{"notes": strings.Repeat("x", 30<<10)}}
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

func TestPagesNeitherRepeatNorHideRows(t *testing.T) {
	type row struct {
		at time.Time
		ID string
	}
	order := func(a, b row) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.ID, b.ID)) }
	token := func(r row) string { return pageToken(r.at, r.ID) }
	small := func(row) int { return 1 }
	var rows []row
	for i := range 25 {
		rows = append(rows, row{time.Unix(int64(i/3), 5), fmt.Sprintf("s%02d", i)}) // some rows have the same time
	}
	want := slices.SortedFunc(slices.Values(rows), order)
	var got []row
	q := &protocol.Query{Limit: 4}
	for pages := 0; ; pages++ {
		page, next, err := paginate(slices.Clone(rows), order, token, small, q)
		if err != nil || pages > 10 {
			t.Fatal(pages, err)
		}
		got = append(got, page...)
		if next == "" {
			break
		}
		q.Page = next
		// Between two pages, a new row appears, which is the newest.
		rows = append(rows, row{time.Unix(100+int64(pages), 0), fmt.Sprint("new", pages)})
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v\nwant %v", got, want)
	}
	if _, _, err := paginate(rows, order, token, small,
		&protocol.Query{Limit: 4, Page: "x"}); protocol.AsError(err).Field != "page" {
		t.Errorf("a bad page token leads to the error %v", err)
	}
}
