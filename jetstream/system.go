package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// System is a connection to the system account of NATS servers in operator mode.
type System struct{ nc *nats.Conn }

const (
	systemWithin = 10 * time.Second       // longest wait for the first answer, if the caller's context has no deadline
	systemQuiet  = 500 * time.Millisecond // after this silence, no further answer is expected
)

// ConnectSystem connects to the servers with the content of a credentials file of the system account. It tries once.
// Errors: those of [Connect].
func ConnectSystem(ctx context.Context, urls string, t TLS, credentials []byte) (*System, error) {
	if err := errors.Join(checkURLs(urls), t.check()); err != nil {
		return nil, err
	}
	opts := nats.GetDefaultOptions()
	opts.Servers, opts.Name, opts.AllowReconnect = splitURLs(urls), "boxfleet auth", false
	for _, option := range []nats.Option{nats.UserCredentialBytes(credentials), t.apply} {
		if err := option(&opts); err != nil {
			return nil, translate(err, "connect to the system account")
		}
	}
	nc, err := connectOnce(ctx, opts)
	if err != nil {
		doing := "connect to the system account at " + redacted(urls)
		if problem := t.explain(err); problem != nil {
			problem.Message = doing + ": " + problem.Message
			return nil, problem
		}
		return nil, translate(err, doing)
	}
	return &System{nc}, nil
}

// AskServers sends a request to all servers and returns their answers. It waits for the first answer until ctx ends, at
// most 10 s. It returns when half a second has passed without another answer. Errors: unavailable if nobody takes the
// request; permission_denied; deadline_exceeded.
func (s *System) AskServers(ctx context.Context, subject string, data []byte) (answers [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, systemWithin)
	defer cancel()
	doing := "ask all servers for " + subject
	inbox := s.nc.NewRespInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, translate(err, doing)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := s.nc.PublishRequest(subject, inbox, data); err != nil {
		return nil, translate(err, doing)
	}
	m, err := sub.NextMsgWithContext(ctx)
	for ; err == nil; m, err = sub.NextMsg(systemQuiet) {
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, protocol.Errorf(protocol.Unavailable, "", "%s: no server takes the request", doing)
		}
		answers = append(answers, m.Data)
	}
	if len(answers) > 0 && errors.Is(err, nats.ErrTimeout) {
		return answers, nil
	}
	return nil, translate(err, doing)
}

// Close closes the connection.
func (s *System) Close() { s.nc.Close() }
