package jetstream_test

import (
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
)

// The first bulk stream opens a second connection at each end, and later ones share it.
func TestBulkStreamsHaveAConnectionOfTheirOwn(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	serveStreams(t, d.conn(t), jetstream.StreamLimits{})
	c := d.conn(t)
	clients := func(bulk bool) int {
		o := opening("echo", "")
		o.Bulk = bulk
		must(t, echoed(openStream(t, c, target(d), o), 1<<20))
		return d.servers[0].NumClients()
	}
	before := clients(false)
	for range 2 {
		if now := clients(true); now != before+2 {
			t.Errorf("the server has %d connections with bulk streams, and had %d without", now, before)
		}
	}
	if now := clients(false); now != before+2 {
		t.Errorf("the server has %d connections after another plain stream, want %d", now, before+2)
	}
}
