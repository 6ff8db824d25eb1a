package coordinator

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Sequences in the queue say which copy was stored before a refusal, since clocks may be wrong.
func TestARefusalAppliesToCopiesStoredBeforeIt(t *testing.T) {
	t.Parallel()
	why := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSandboxNotReady, "not ready")
	request := jetstream.Delivery{Tenant: "t", Verb: protocol.VerbExec, Sandbox: "s", ID: "r", Payload: []byte("x"),
		Sequence: 3}
	var r refusals
	r.note(&request, why, 5)
	for name, c := range map[string]struct {
		change  func(d *jetstream.Delivery)
		refused bool
	}{
		"an earlier copy": {func(d *jetstream.Delivery) { d.Sequence = 5 }, true},
		"an earlier copy, stored later according to a wrong clock": {func(d *jetstream.Delivery) {
			d.Sequence, d.StoredAt = 4, time.Now().Add(time.Hour)
		}, true},
		"a later copy": {func(d *jetstream.Delivery) { d.Sequence = 6 }, false},
		"a later copy, stored earlier according to a wrong clock": {func(d *jetstream.Delivery) {
			d.Sequence, d.StoredAt = 6, time.Now().Add(-time.Hour)
		}, false},
		"another verb":                       {func(d *jetstream.Delivery) { d.Verb = protocol.VerbDelete }, false},
		"another exec":                       {func(d *jetstream.Delivery) { d.Payload = []byte("y") }, false},
		"another sandbox":                    {func(d *jetstream.Delivery) { d.Sandbox = "s2" }, false},
		"another tenant with the same names": {func(d *jetstream.Delivery) { d.Tenant = "t2" }, false},
	} {
		d := request
		c.change(&d)
		if got := r.of(&d) != nil; got != c.refused {
			t.Errorf("%s: refused is %v, want %v", name, got, c.refused)
		}
	}
}
