package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// How a client notices that a worker was lost with the request to open a stream, or the answer with its connection.
const (
	openingAskAfter = time.Second     // how long an answer is awaited before the first question
	openingAskEvery = 3 * time.Second // pause between two questions
	// openingLastWord is how long the answer is awaited once it seems lost. The answer to a question may overtake the
	// answer to the request, because a bulk stream's answer travels on another connection.
	openingLastWord = time.Second
)

var errOpeningLost = protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
	"the worker restarted before it answered: it is unknown whether it carried out the operation")

// watchOpening returns a context that ends with a cause when the request to open a stream, or its answer, is lost: the
// worker that serves now does not have the request, or no worker has answered a question for silenceMost.
func (l *streamLink) watchOpening(ctx context.Context, subject, id string) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		if why := l.openingLost(ctx, subject, id); why != nil && backoff.Sleep(ctx, openingLastWord) {
			end(why)
		}
	}()
	return ctx, func() { end(nil) }
}

// openingLost asks the worker about a request until ctx ends, and then returns nil, or until the request is lost.
func (l *streamLink) openingLost(ctx context.Context, subject, id string) *protocol.Error {
	if !backoff.Sleep(ctx, openingAskAfter) {
		return nil
	}
	for quietSince := time.Now(); ; {
		answer, answered := l.askOnce(ctx, subject, id)
		switch {
		case answer == stream.Gone:
			return errOpeningLost
		case answer != stream.Reached, answered: // a worker of an earlier version answers, and knows no questions
			quietSince = time.Now()
		case time.Since(quietSince) >= silenceMost:
			return protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost,
				"the worker has not answered for %s: it is unknown whether it carried out the operation", silenceMost)
		}
		if !backoff.Sleep(ctx, openingAskEvery) {
			return nil
		}
	}
}

// unansweredRequests are the requests that a worker has received and not answered. A probe asks for one of them.
type unansweredRequests struct {
	mu     sync.Mutex
	unread map[string]int // requests that are not decoded yet, so their ids are unknown, by the subject of the request
	read   map[string]int // by the subject of what the client would send on the stream
}

// received counts a request that is not decoded yet.
func (u *unansweredRequests) received(subject string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unread = added(u.unread, subject, 1)
}

// decoded says that a request is decoded. If it was not valid, upSubject is empty. The caller calls answered once the
// request is answered, or its stream is registered. More calls do nothing.
func (u *unansweredRequests) decoded(subject, upSubject string) (answered func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unread = added(u.unread, subject, -1)
	if upSubject == "" {
		return func() {}
	}
	u.read = added(u.read, upSubject, 1)
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.read = added(u.read, upSubject, -1)
	})
}

// mayHave reports whether the request is among them. A request that is not decoded yet may be the one.
func (u *unansweredRequests) mayHave(subject, upSubject string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unread[subject] > 0 || u.read[upSubject] > 0
}

// added changes a count. It keeps no count of 0.
func added(counts map[string]int, key string, by int) map[string]int {
	if counts == nil {
		counts = map[string]int{}
	}
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
	return counts
}
