package coordinator

import (
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// A request that is decided again, because the first decision's append was not confirmed, finds its own sandbox or
// exec.
func TestARequestThatIsDecidedAgainSaysThatItCreatedTheSandbox(t *testing.T) {
	t.Parallel()
	sandbox := func(request string) *protocol.Reply {
		return &protocol.Reply{Sandbox: &protocol.Sandbox{Request: request}}
	}
	exec := func(request string) *protocol.Reply { return &protocol.Reply{Exec: &protocol.Exec{Request: request}} }
	for _, c := range []struct {
		verb  string
		reply *protocol.Reply
		want  bool
	}{
		{protocol.VerbCreate, sandbox("r1"), true},
		{protocol.VerbCreate, sandbox("r2"), false},
		{protocol.VerbExec, exec("r1"), true},
		{protocol.VerbExec, exec("r2"), false},
		{protocol.VerbStop, sandbox("r1"), false},
		{protocol.VerbCreate, &protocol.Reply{Error: &protocol.Error{}}, false},
		{protocol.VerbExec, &protocol.Reply{Error: &protocol.Error{}}, false},
	} {
		if got := isFrom(c.reply, &jetstream.Delivery{Verb: c.verb, ID: "r1"}); got != c.want {
			t.Errorf("%s answered with %+v: %v", c.verb, c.reply, got)
		}
	}
}
