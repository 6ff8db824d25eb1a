package jetstream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Coordinators of earlier versions made a stream of output that has no subjects with hosts. While only such
// coordinators run, a worker stores output as their version did, so that no output and no end of an exec waits for an
// upgrade. The stream's own settings decide: a missing answer alone may be an election.

// earlierAgain is how often a worker that stores output as earlier versions did reads the stream's subjects again.
const earlierAgain = 10 * time.Second

// earlierOutput says whether output is stored as earlier versions did.
type earlierOutput struct {
	mu      sync.Mutex
	used    bool
	reading bool
	read    time.Time // when the stream's subjects were last read
}

// outputSubject returns the subject under which output is stored.
func (o *OutputLog) outputSubject(host, tenant, sandbox, log string) string {
	e := &o.earlier
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.used {
		return protocol.OutputSubject(host, tenant, sandbox, log)
	}
	if !e.reading && time.Since(e.read) > earlierAgain {
		e.reading = true
		go o.readOutputSubjects() // ends after the connection's timeout at the latest
	}
	return protocol.LogSubject(tenant, sandbox, log)
}

// orEarlier returns the error of a chunk that was not stored. If the stream has no subject for the output of this
// version, the next chunks are stored as earlier versions did.
func (o *OutputLog) orEarlier(err error, subject string) error {
	// Only fleets without credentials have such coordinators, and credentials permit no worker to read the stream.
	if !errors.Is(err, jetstream.ErrNoStreamResponse) || o.cfg.Creds != "" || !isUnder(subject, protocol.OutputFilter) {
		return translateWrite(err, subject)
	}
	if o.readOutputSubjects() {
		return protocol.Errorf(protocol.Unavailable, "", "write to %s: the coordinators are of an earlier version, whose "+
			"stream of output lacks this subject: output is stored as in that version until they are upgraded", subject)
	}
	return translateWrite(err, subject)
}

// readOutputSubjects reads which subjects the stream of output has, and reports whether it has only those of earlier
// versions.
func (o *OutputLog) readOutputSubjects() (earlier bool) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	info, err := o.streamInfo(ctx, protocol.StreamLogs)
	e := &o.earlier
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading, e.read = false, time.Now()
	if err != nil {
		return e.used
	}
	has := func(subject string) bool { return slices.Contains(info.Config.Subjects, subject) }
	switch before := e.used; {
	case before == (!has(protocol.OutputFilter) && has(protocol.LogFilter)):
	case before:
		o.log.Info("the stream of output has the subjects of this version: output is stored as in this version")
		e.used = false
	default:
		o.log.Warn("the coordinators are of an earlier version: output is stored as in that version until they are " +
			"upgraded; upgrade the coordinators before the workers")
		e.used = true
	}
	return e.used
}
