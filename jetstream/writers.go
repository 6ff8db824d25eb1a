package jetstream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Writers knows the keys of coordinators and workers, and when the deployment began to require signatures. Each
// coordinator and worker registers its signing key once. The server's permissions prove the writer's name and key.
type Writers struct {
	*streams

	signs       atomic.Pointer[writing] // nil: this connection is not registered as a writer
	onReconnect sync.Once

	mu      sync.Mutex
	owners  map[string]owner  // by key; the owner of a key never changes
	nobodys map[string]uint64 // by key: newest record at which nobody had registered the key
	rules   *protocol.Rules   // nil until read; final once the deployment requires signatures
	read    time.Time         // when rules was read

	refusals refusals
}

// owner is the writer that a key belongs to. since is when the key was registered, by the store's clock.
type owner struct {
	protocol.Writer
	since time.Time
}

// writing describes how a registered connection writes: its registered writer, and its key.
type writing struct {
	protocol.Writer
	signer *signer   // nil: the writer has no key
	since  time.Time // when the key was registered
}

const (
	// writersKnown is how many keys a connection remembers. A fleet has one for each coordinator and worker.
	writersKnown = 1 << 16
	// askRulesAgain is how long a process without a key believes that signatures are not required.
	askRulesAgain = 5 * time.Second
)

// since is the message that says from which record on a deployment requires signatures.
type since struct {
	Version int    `json:"v"`
	Record  uint64 `json:"record"` // last record of the event log that may be unsigned
}

// registration is the message that records the owner of a key. Its subject names the writer and the key.
type registration struct {
	Version int `json:"v"`
}

// RegisterWriter prepares the connection to append. From then on, the connection signs each message that its journals
// append. It signs with the key of its credentials. RegisterWriter stores the owner of the key, and later does so for
// each new key that the connection presents. The first coordinator that has a key also makes the deployment require
// signatures from then on. host is the id of a worker's Docker host. Without a key, nothing is signed.
//
// Errors: failed_precondition with reason no_key if the deployment requires signatures and the connection has no key;
// failed_precondition with reason not_provisioned if this worker has a key, but no coordinator has one yet;
// permission_denied if the server does not let the connection register its key; unavailable.
func (w *Writers) RegisterWriter(ctx context.Context, role protocol.Owner, name, host string) error {
	err := w.register(ctx, protocol.Writer{Role: role, Name: name, Host: host})
	if err == nil {
		w.onReconnect.Do(func() { w.OnReconnect(w.renewKey) })
	}
	return err
}

// renewKey runs after each reconnect. If the connection now presents a new key to the server, renewKey registers that
// key. Until the new key is registered, the old key signs.
func (w *Writers) renewKey() {
	if !w.hasNewKey(w.signs.Load()) {
		return
	}
	go func() { // callbacks must not block
		for pause := backoff.New(retryPause, time.Minute); ; {
			now := w.signs.Load()
			if !w.hasNewKey(now) {
				return
			}
			err := w.register(context.Background(), now.Writer)
			if err == nil || !w.Connected() { // each new connection tries again
				return
			}
			w.log.Error("could not register the new key of this process; it still signs with the old one",
				"writer", now.Name, "error", err)
			if !w.sleep(context.Background(), pause.Next()) {
				return
			}
		}
	}()
}

// hasNewKey reports whether the connection presents a key other than its registered one, which the parameter now has.
//
// A key for another Docker host does not count. When the worker's engine becomes another host, the worker gets
// credentials for that host, starts over and registers the key itself. The server would refuse the key under the old
// host.
func (w *Writers) hasNewKey(now *writing) bool {
	s := w.login.key()
	return s != nil && (now.signer == nil || now.signer.public != s.public) && (s.host == "" || s.host == now.Host)
}

func (w *Writers) register(ctx context.Context, who protocol.Writer) error {
	s := w.login.key()
	if s == nil {
		rules, err := w.currentRules(ctx)
		if err == nil && rules.Signed {
			err = errNoKey(who)
		}
		if err == nil {
			w.signs.Store(&writing{Writer: who})
		}
		return err
	}
	m := nats.NewMsg(protocol.WriterSubject(who.Role, who.Name, who.Host, s.public))
	m.Data = protocol.Encode(&registration{Version: protocol.Version})
	if _, err := w.publish(ctx, m, 0); err != nil && err != ErrConflict { // ErrConflict: the key is already registered
		return err
	}
	registered, err := w.owner(ctx, s.public)
	if err == nil && registered.Writer != who {
		err = protocol.Errorf(protocol.PermissionDenied, "", "the key %s of %s %s belongs to %s %s: "+
			"give each process credentials of its own", s.public, who.Role, who.Name, registered.Role, registered.Name)
	}
	if err == nil {
		err = w.awaitTime(ctx, registered.since)
	}
	if err != nil {
		return err
	}
	if err := w.require(ctx, who.Role == protocol.OwnerCoordinator); err != nil {
		return err
	}
	w.signs.Store(&writing{who, s, registered.since})
	return nil
}

func errNoKey(who protocol.Writer) error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoKey,
		"%s %s has no key to sign with, but this deployment requires signatures: give it credentials that "+
			"boxfleet auth add makes, with the setting creds", who.Role, who.Name)
}

// require reads since when the deployment requires signatures. If the deployment requires no signatures yet and the
// parameter first is true, require makes the deployment require them from now on.
func (w *Writers) require(ctx context.Context, first bool) error {
	for {
		w.mu.Lock()
		w.read = time.Time{} // ask now
		w.mu.Unlock()
		rules, err := w.currentRules(ctx)
		if err != nil || rules.Signed {
			return err
		}
		if !first {
			return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotProvisioned,
				"this worker has a key to sign with, but no coordinator signs its messages yet: "+
					"give credentials to the coordinators, or none to the worker")
		}
		last, err := w.lastSequence(ctx, protocol.StreamEvents)
		if err != nil {
			return err
		}
		m := nats.NewMsg(protocol.WritersSince)
		m.Data = protocol.Encode(&since{Version: protocol.Version, Record: last})
		if _, err := w.publish(ctx, m, 0); err != nil && err != ErrConflict {
			return err
		} else if err == nil {
			w.log.Info("the event log now requires signatures: readers refuse later messages that are not signed", "after", last)
		}
	}
}

// awaitTime waits until the event log's clock has passed a time. Readers refuse a message that was stored before its
// key was registered, and the servers' clocks may differ.
func (w *Writers) awaitTime(ctx context.Context, at time.Time) error {
	for {
		info, err := w.streamInfo(ctx, protocol.StreamEvents)
		if err != nil {
			return err
		}
		ahead := at.Sub(info.TimeStamp)
		if ahead < 0 {
			return nil
		}
		if !w.sleep(ctx, min(ahead+time.Millisecond, time.Second)) {
			return protocol.Errorf(protocol.DeadlineExceeded, "",
				"the clocks of the NATS servers differ by %v or more: set them to the same time", ahead)
		}
	}
}

// Writer returns the coordinator or worker that a key belongs to. Errors: not_found if nobody has registered the key;
// unavailable.
func (w *Writers) Writer(ctx context.Context, key string) (protocol.Writer, error) {
	o, err := w.owner(ctx, key)
	return o.Writer, err
}

func (w *Writers) owner(ctx context.Context, key string) (owner, error) {
	w.mu.Lock()
	o, known := w.owners[key]
	w.mu.Unlock()
	if known {
		return o, nil
	}
	o, err := w.lookUp(ctx, key)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.owners == nil || len(w.owners) >= writersKnown {
			w.owners = map[string]owner{}
		}
		w.owners[key] = o
	}
	return o, err
}

// known returns the writer that a key belongs to, if the connection has asked before, otherwise a writer without a
// role.
func (w *Writers) known(key string) protocol.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owners[key].Writer
}

// ownerAt is like owner, but remembers that nobody had registered a key when a record of the event log was stored.
func (w *Writers) ownerAt(ctx context.Context, key string, record uint64) (owner, error) {
	w.mu.Lock()
	nobodys := w.nobodys[key] >= record
	w.mu.Unlock()
	if nobodys {
		return owner{}, errNobodysKey(key)
	}
	o, err := w.owner(ctx, key)
	if protocol.CodeOf(err) == protocol.NotFound {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.nobodys == nil || len(w.nobodys) >= writersKnown {
			w.nobodys = map[string]uint64{}
		}
		w.nobodys[key] = max(w.nobodys[key], record)
	}
	return o, err
}

// lookUp asks the server for the owner of a key. A key belongs to the writer that registered it first.
func (w *Writers) lookUp(ctx context.Context, key string) (owner, error) {
	if w.withoutStreams {
		return owner{}, protocol.Errorf(protocol.Unavailable, "", "this connection cannot read the owners of keys")
	}
	m, err := w.nextOnSubject(ctx, protocol.StreamWriters, protocol.WriterSubject("*", "*", "*", key), 1)
	if protocol.CodeOf(err) == protocol.NotFound || isReason(err, protocol.ReasonNotProvisioned) {
		return owner{}, errNobodysKey(key)
	}
	if err != nil {
		return owner{}, err
	}
	of, _, ok := protocol.SplitWriterSubject(m.subject)
	if !ok {
		return owner{}, errNobodysKey(key)
	}
	return owner{of, m.time}, nil
}

func errNobodysKey(key string) error {
	return protocol.Errorf(protocol.NotFound, protocol.ReasonNotProven, "no coordinator or worker has registered key %s",
		key)
}

// Since returns the last record of the event log that may be unsigned. required is false if the deployment does not
// require signatures. Error: unavailable.
func (w *Writers) Since(ctx context.Context) (record uint64, required bool, err error) {
	rules, err := w.currentRules(ctx)
	return rules.Since, rules.Signed, err
}

// currentRules returns what the deployment requires of the messages of its event log.
func (w *Writers) currentRules(ctx context.Context) (protocol.Rules, error) {
	w.mu.Lock()
	rules, read := w.rules, w.read
	w.mu.Unlock()
	if rules != nil && (rules.Signed || time.Since(read) < askRulesAgain) {
		return *rules, nil
	}
	fresh, err := w.readRules(ctx)
	if err != nil {
		return protocol.Rules{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rules == nil || !w.rules.Signed {
		w.rules, w.read = &fresh, time.Now()
	}
	if now := w.signs.Load(); fresh.Signed && now != nil && now.signer == nil {
		w.log.Error("this deployment requires signatures now, but this process has no key: it can no longer append",
			"error", errNoKey(now.Writer))
	}
	return *w.rules, nil
}

func (w *Writers) readRules(ctx context.Context) (protocol.Rules, error) {
	assets, err := w.assets(ctx)
	if err != nil {
		return protocol.Rules{}, err
	}
	rules := protocol.Rules{Deployment: assets.deployment}
	m, err := w.lastOnSubject(ctx, protocol.StreamWriters, protocol.WritersSince)
	if protocol.CodeOf(err) == protocol.NotFound || isReason(err, protocol.ReasonNotProvisioned) {
		return rules, nil
	}
	var s since
	if err == nil {
		err = protocol.Decode(m.data, &s)
	}
	if err == nil {
		err = protocol.CheckVersion(s.Version)
	}
	rules.Signed, rules.Since = true, s.Record
	return rules, err
}

// key returns the key that the connection signs with; nil if it signs nothing.
func (w *Writers) key() *signer {
	if now := w.signs.Load(); now != nil {
		return now.signer
	}
	return nil
}

// awaitKey waits while the store's clock is behind the registration of this process's key: readers would refuse a
// message that is stored now. Another server may lead the event log since the registration. Error: unavailable.
func (w *Writers) awaitKey(ctx context.Context) error {
	for {
		now := w.signs.Load()
		if now == nil || now.signer == nil {
			return nil
		}
		behind := now.since.Sub(w.Now())
		if behind <= 0 {
			return nil
		}
		if !w.sleep(ctx, min(behind, time.Second)) {
			return protocol.Errorf(protocol.Unavailable, "", "the clock of the NATS server that leads the event log is %v "+
				"behind that of the server that registered this process's key: set the clocks to the same time", behind)
		}
	}
}

// knownRules returns the rules that were read last, without asking the server.
func (w *Writers) knownRules() protocol.Rules {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rules == nil {
		return protocol.Rules{}
	}
	return *w.rules
}

// identify completes the proof of a message with the writer that the signature's key belongs to. It returns an error if
// it could not ask the server. Nothing is known about the message then.
func (w *Writers) identify(ctx context.Context, e *entry) error {
	if _, err := w.currentRules(ctx); err != nil {
		return err
	}
	p := e.proof
	if p.Signature == nil || p.Fault != nil {
		return nil
	}
	o, err := w.ownerAt(ctx, p.Signature.Key, e.record)
	if protocol.CodeOf(err) == protocol.NotFound {
		p.Fault = protocol.AsError(err)
		return nil
	}
	// A key proves no message that was stored before the key's registration. Readers have already refused such a
	// message, and the registration must not change their verdict.
	if err == nil && e.time.Before(o.since) {
		p.Fault = protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
			"its key %s was registered only after it was stored", p.Signature.Key)
	}
	p.Writer = o.Writer
	return err
}

// prove completes the proof of a message: it finds the writer and checks the signature.
func (w *Writers) prove(ctx context.Context, e *entry) error {
	if err := w.identify(ctx, e); err != nil {
		return err
	}
	e.proof.Check(w.knownRules().Deployment, e.tenant, e.sandbox)
	return nil
}
