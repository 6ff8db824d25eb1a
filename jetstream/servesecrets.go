package jetstream

import (
	"context"
	"runtime/debug"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// SecretAnswers answers the requests for secrets and values.
type SecretAnswers struct {
	// Request sets or removes a secret. The server's permissions prove the tenant and the user.
	Request func(ctx context.Context, of SecretRequestOf, r *protocol.SecretRequest) (*protocol.Reply, error)
	// Unseal returns a value for a worker, sealed to the key in the query. The worker and its host are proven.
	Unseal func(ctx context.Context, worker protocol.Writer, q *protocol.UnsealQuery) (sealed []byte, err error)
}

// SecretRequestOf says what the subject of a request for a secret names. The user is empty for a client without a user.
type SecretRequestOf struct{ Tenant, User, Name, Verb string }

// The requests of tenants take turns, and so do the questions of workers.
var (
	secretTurns = turnLimits{running: 16, ofOneLine: 8, waiting: amount{jobs: 512, bytes: 16 << 20}}
	unsealTurns = turnLimits{running: 64, ofOneLine: 32, waiting: amount{jobs: 4096, bytes: 16 << 20}}
)

// ServeSecrets answers requests until ctx ends. Several coordinators serve at once; each request goes to one of them.
// It calls serving when it has begun to receive requests. Errors: those of [Connect].
func (s *Secrets) ServeSecrets(ctx context.Context, answers SecretAnswers, serving func()) error {
	own, err := s.another(ctx, "secrets")
	if err != nil {
		return err
	}
	defer own.Close()
	requests := newTurns(secretTurns, func(m *nats.Msg) { s.answerRequest(ctx, m, answers) })
	questions := newTurns(unsealTurns, func(m *nats.Msg) { s.answerQuestion(ctx, m, answers) })
	for subject, add := range map[string]nats.MsgHandler{
		protocol.SecretSubject("*", "*", "*", "*"): func(m *nats.Msg) {
			tenant, user, _, _, _ := protocol.SplitSecretSubject(m.Subject)
			for _, dropped := range requests.add(lineOf(tenant, user), m, amount{1, m.Size()}) {
				s.replyToRequest(dropped, nil, errTooManySecrets)
			}
		},
		protocol.UnsealSubject("*", "*", "*"): func(m *nats.Msg) {
			worker, _, _, _ := protocol.SplitUnsealSubject(m.Subject)
			for _, dropped := range questions.add(worker, m, amount{1, m.Size()}) {
				s.replyToQuestion(dropped, nil, errTooManySecrets)
			}
		},
	} {
		if _, err := own.nc.QueueSubscribe(subject, "coordinators", add); err != nil {
			return translate(err, "receive requests for secrets")
		}
	}
	if err := own.Flush(ctx); err != nil {
		return err
	}
	serving()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-own.Closed():
		return translate(nats.ErrConnectionClosed, "receive requests for secrets")
	}
}

var errTooManySecrets = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
	"too many requests for secrets already wait: try again later")

// answerRequest answers a request to set or remove a secret.
func (s *Secrets) answerRequest(ctx context.Context, m *nats.Msg, answers SecretAnswers) {
	tenant, user, name, verb, _ := protocol.SplitSecretSubject(m.Subject)
	r := &protocol.SecretRequest{}
	err := protocol.DecodeStrict(headerOf(m.Header, protocol.HeaderContentType), m.Data, r)
	if err == nil {
		err = protocol.CheckVersion(r.Version)
	}
	if err == nil && isRepublished(m.Header) {
		err = errRepublished
	}
	var reply *protocol.Reply
	if err == nil {
		reply, err = guarded(s, func() (*protocol.Reply, error) {
			return answers.Request(ctx, SecretRequestOf{tenant, user, name, verb}, r)
		})
	}
	s.replyToRequest(m, reply, err)
}

var errRepublished = protocol.Errorf(protocol.PermissionDenied, protocol.ReasonForeignInbox,
	"a stream republished the request: publish it directly")

// guarded calls f. If f panics, only this request fails. The text of the panic is not logged, because it may have a
// part of a value.
func guarded[T any](s *Secrets, f func() (T, error)) (answer T, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a request for a secret panicked", "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.Internal, "", "the request panicked: see the log of the coordinator")
		}
	}()
	return f()
}

func (s *Secrets) replyToRequest(m *nats.Msg, reply *protocol.Reply, err error) {
	tenant, user, _, _, _ := protocol.SplitSecretSubject(m.Subject)
	if !protocol.MayReply(m.Reply, tenant, user) {
		return
	}
	if err != nil {
		reply = &protocol.Reply{Error: protocol.AsError(err)}
	}
	reply.Version = protocol.Version
	contentType := answerType(headerOf(m.Header, protocol.HeaderContentType), m.Data)
	out := nats.NewMsg(m.Reply)
	out.Header.Set(protocol.HeaderContentType, contentType)
	out.Data = protocol.EncodeAs(contentType, reply)
	s.respond(m, out)
}

func (s *Secrets) respond(to, out *nats.Msg) {
	if err := s.nc.PublishMsg(out); err != nil {
		s.log.Warn("could not answer a request for a secret", "subject", to.Subject, "error", err)
	}
}

// answerQuestion answers a worker that asks for a value.
func (s *Secrets) answerQuestion(ctx context.Context, m *nats.Msg, answers SecretAnswers) {
	q := &protocol.UnsealQuery{}
	err := protocol.Decode(m.Data, q)
	if err == nil {
		err = protocol.CheckVersion(q.Version)
	}
	var worker protocol.Writer
	if err == nil {
		worker, err = s.proven(ctx, m, q)
	}
	var sealed []byte
	if err == nil {
		sealed, err = guarded(s, func() ([]byte, error) { return answers.Unseal(ctx, worker, q) })
	}
	s.replyToQuestion(m, sealed, err)
}

// proven returns the worker that asks a question. The subject proves its name, host and key; the signature proves that
// the worker with this key asks. Error: permission_denied.
func (s *Secrets) proven(ctx context.Context, m *nats.Msg, q *protocol.UnsealQuery) (protocol.Writer, error) {
	name, host, key, _ := protocol.SplitUnsealSubject(m.Subject)
	asks := protocol.Writer{Role: protocol.OwnerWorker, Name: name, Host: host}
	if isRepublished(m.Header) {
		return asks, errRepublished
	}
	registered, err := s.writers.Writer(ctx, key)
	switch {
	case protocol.CodeOf(err) == protocol.NotFound || err == nil && registered != asks:
		return asks, protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
			"the key %.60s is not registered for worker %.64s on host %.64s", key, name, host)
	case err != nil:
		return asks, err
	}
	signature := protocol.Signature{Key: key}
	if copy(signature.Sum[:], q.Signature) != len(q.Signature) ||
		!signature.Signs(protocol.UnsealText(s.Deployment(), q)) {
		return asks, protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven,
			"the question is not signed by the key of worker %.64s", name)
	}
	return asks, nil
}

func (s *Secrets) replyToQuestion(m *nats.Msg, sealed []byte, err error) {
	name, _, _, _ := protocol.SplitUnsealSubject(m.Subject)
	if !protocol.MayReply(m.Reply, "", "@"+name) {
		return
	}
	out := nats.NewMsg(m.Reply)
	out.Data = protocol.Encode(&protocol.UnsealReply{Error: protocol.AsError(err), Sealed: sealed})
	s.respond(m, out)
}
