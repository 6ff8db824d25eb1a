package doctor

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// late says what the sandbox or exec waits for, by kind.
var late = map[protocol.OwedKind]struct {
	code Code
	what string
}{
	protocol.OwedPlacement: {OwedPlacement, "a host"},
	protocol.OwedCreate:    {OwedCreate, "its worker to make it ready"},
	protocol.OwedRestart:   {OwedRestart, "the restart of its container"},
	protocol.OwedStop:      {OwedStop, "its worker to stop it"},
	protocol.OwedDelete:    {OwedDelete, "its worker to remove it"},
	protocol.OwedExecStart: {OwedExec, "its start"},
	protocol.OwedExecEnd:   {OwedExec, "its end since its timeout passed"},
}

// owed reports the work that is late.
func (e *examination) owed() {
	if e.Checkup == nil {
		return
	}
	for _, o := range e.Checkup.Owed {
		l, known := late[o.Kind]
		if !known { // a newer coordinator
			l.code, l.what = OwedMore, string(o.Kind)
		}
		whose, subject := "sandbox ", o.Sandbox
		if o.Exec != "" {
			whose, subject = "exec ", o.Sandbox+"/"+o.Exec
		}
		if o.Tenant != e.You.Tenant {
			subject = o.Tenant + ": " + subject
		}
		by := ""
		if o.Worker != "" {
			by = ", on worker " + o.Worker
		}
		e.find(l.code, subject, "%s%s has waited %s for %s%s", whose, subject, e.now().Sub(o.Since).Round(time.Second),
			l.what, by)
	}
	if more := e.Checkup.OwedCount - len(e.Checkup.Owed); more > 0 {
		e.find(OwedMore, "", "%d more sandboxes and execs are late", more)
	}
}
