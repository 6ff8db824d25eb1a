package sdk

import (
	"context"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// writers knows the owners of the keys that sign batches, and whether the deployment requires signatures. It asks the
// coordinators once for each key. It asks only for keys of batches that are part of a history, so forged batches cannot
// make clients ask for any number of keys.
type writers struct {
	ask func(ctx context.Context, keys []string) (*protocol.WriterPage, error)

	mu     sync.Mutex
	rules  protocol.Rules
	read   time.Time                            // when rules was read; zero: not read yet
	byKey  map[string]protocol.RegisteredWriter // the writer of a key never changes
	asking bool                                 // a refresh is running
}

const (
	// writersKnown is how many keys a client remembers. A fleet has one for each coordinator and worker.
	writersKnown = 1 << 14
	// rulesAge is how long a client believes that a deployment does not require signatures.
	rulesAge = 5 * time.Second
)

// current returns the rules of the deployment, if the client knows them. stale is true if the client should ask again.
func (w *writers) current() (rules protocol.Rules, known, stale bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = !w.read.IsZero()
	return w.rules, known, !known || !w.rules.Signed && time.Since(w.read) > rulesAge
}

// The method "of" returns the writer that a key belongs to, if the client knows it.
func (w *writers) of(key string) (protocol.RegisteredWriter, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	writer, known := w.byKey[key]
	return writer, known
}

// learn asks the coordinators for the rules of the deployment and for the writers that own the given keys.
func (w *writers) learn(ctx context.Context, keys []string) error {
	for first := true; first || len(keys) > 0; first = false {
		n := min(len(keys), protocol.MaxKeys)
		page, err := w.ask(ctx, keys[:n])
		if err != nil {
			return err
		}
		keys = keys[n:]
		w.mu.Lock()
		if !w.rules.Signed { // a deployment that requires signatures never stops doing so
			w.rules, w.read = page.Rules(), time.Now()
		}
		if w.byKey == nil || len(w.byKey)+len(page.Writers) > writersKnown {
			w.byKey = map[string]protocol.RegisteredWriter{}
		}
		for _, writer := range page.Writers {
			w.byKey[writer.Key] = writer
		}
		w.mu.Unlock()
	}
	return nil
}

// refreshRules asks for the rules of the deployment in the background, if they are unknown or stale.
func (c *Client) refreshRules() {
	w := c.writers
	_, _, stale := w.current()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !stale || w.asking || c.ctx.Err() != nil {
		return
	}
	w.asking = true
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		ctx, cancel := context.WithTimeout(c.ctx, c.requestTimeout)
		defer cancel()
		_ = w.learn(ctx, nil) // a caller that needs the answer asks again
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asking = false
	}()
}

// askWriters asks the coordinators for the writers that own the keys. Coordinators of an older version cannot answer.
// In such a deployment, all readers accept messages without signatures.
func (c *Client) askWriters(ctx context.Context, keys []string) (*protocol.WriterPage, error) {
	page, err := c.reads.Writers(ctx, keys)
	if protocol.IsNotServed(err) {
		return &protocol.WriterPage{}, nil
	}
	if protocol.CodeOf(err) != protocol.Unavailable {
		return page, err
	}
	// NATS gives the same error for an unknown endpoint and for missing coordinators.
	if _, missing := c.conn.Query(ctx, c.tenant, protocol.EndpointPing, &protocol.Query{}); missing != nil {
		return nil, err
	}
	if page, err = c.reads.Writers(ctx, keys); protocol.CodeOf(err) == protocol.Unavailable {
		return &protocol.WriterPage{}, nil
	}
	return page, err
}
