package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// stored is a message of a stream.
type stored struct {
	subject  string
	sequence uint64
	header   nats.Header
	data     []byte
	time     time.Time // when the message was stored; not set by batched reads
	batch    *byte     // equal for all messages of one batched read; nil: the message was read alone

	odd    bool // the headers from a batched read cannot be believed, so the message must be read from the leader
	strict bool // header has the raw headers as the server reads them
}

// confirm reads a message again, with the headers as the server reads them. If the message is no longer in the stream,
// confirm returns m unchanged.
func (s *streams) confirm(ctx context.Context, stream string, m *stored) (*stored, error) {
	if m.strict {
		return m, nil
	}
	found, err := s.leaderGet(ctx, stream, map[string]any{"seq": m.sequence})
	if protocol.CodeOf(err) == protocol.NotFound {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	found.batch = m.batch
	return found, nil
}

// streams reads and writes the messages of streams and buckets. Every part of [Conn] that stores something embeds a
// streams.
type streams struct {
	*core

	directs chan struct{} // slots for batched direct gets
}

// publish stores a message and waits for the acknowledgement. expected is the sequence of the subject's last message,
// or anySequence.
func (s *streams) publish(ctx context.Context, m *nats.Msg, expected int64) (uint64, error) {
	if why := s.room.broken(); why != "" && isUnder(m.Subject, protocol.AppendFilter) {
		return 0, Room{Failed: why}.Err() // the server cannot append, so it would not answer
	}
	ctx, cancel := s.await(ctx, "")
	defer cancel()
	var opts []jetstream.PublishOpt
	if expected != anySequence {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(uint64(expected)))
	}
	ack, err := s.js.PublishMsg(ctx, m, opts...)
	if err != nil {
		if isUnder(m.Subject, protocol.AppendFilter) && errors.Is(err, context.DeadlineExceeded) {
			s.room.suspect()
		}
		return 0, translateWrite(causeOf(ctx, err), m.Subject)
	}
	return ack.Sequence, nil
}

const anySequence = -1

// lastOnSubject reads the last message of a subject from the stream's leader, never a stale one. Error: not_found.
func (s *streams) lastOnSubject(ctx context.Context, stream, subject string) (*stored, error) {
	return s.leaderGet(ctx, stream, map[string]any{"last_by_subj": subject})
}

// nextOnSubject reads the first message of a subject at or after a sequence from the stream's leader. Error:
// not_found.
func (s *streams) nextOnSubject(ctx context.Context, stream, subject string, from uint64) (*stored, error) {
	return s.leaderGet(ctx, stream, map[string]any{"seq": from, "next_by_subj": subject})
}

func (s *streams) leaderGet(ctx context.Context, stream string, query map[string]any) (*stored, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "%v", err)
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	for {
		m, err := s.leaderGetOnce(bounded, stream, body)
		// A stream has no leader during an election. Ask again.
		if protocol.CodeOf(err) != protocol.Unavailable || !s.sleep(bounded, retryPause) {
			return m, err
		}
	}
}

func (s *streams) leaderGetOnce(ctx context.Context, stream string, query []byte) (*stored, error) {
	reply, err := s.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: query})
	if err != nil {
		return nil, translate(err, "read "+stream)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read %s: %v", stream, err)
	}
	if answer.Error != nil {
		return nil, translate(answer.Error, "read "+stream)
	}
	m := &stored{
		subject:  answer.Message.Subject,
		sequence: answer.Message.Sequence,
		data:     answer.Message.Data,
		time:     answer.Message.Time,
		header:   headersOf(answer.Message.Header),
		strict:   true,
	}
	return m, nil
}

// Limits of batched direct gets: the messages and bytes of one request, and the number of requests at once on a
// connection. A server disconnects a client that falls too far behind in reading the answers.
const (
	directBatch   = 512
	directBytes   = 2 << 20
	directsAtOnce = 6
)

// scan reads the messages of one subject from a sequence on, in order, until visit returns false. It uses
// batched direct gets and no consumer. In a cluster a replica that is behind may answer, so the newest messages may be
// missing.
func (s *streams) scan(ctx context.Context, stream, subject string, from uint64,
	visit func(*stored) (bool, error)) error {
	from = max(from, 1)
	received := time.Now()
	for {
		next, more, err := s.scanBatch(ctx, stream, subject, from, visit)
		if next > from {
			from, received = next, time.Now()
		}
		// The answer or its last part was lost: repeat the request.
		if err == errUnanswered && ctx.Err() == nil && time.Since(received) < s.timeout {
			continue
		}
		if err != nil || !more {
			return err
		}
	}
}

var errUnanswered = protocol.Errorf(protocol.DeadlineExceeded, "", "no answer in time")

// scanBatch sends one request. It visits the messages only after all of them have arrived, because visits may take long
// and would keep other readers waiting. next is the sequence after the last visited message.
func (s *streams) scanBatch(ctx context.Context, stream, subject string, from uint64,
	visit func(*stored) (bool, error)) (next uint64, more bool, err error) {
	messages, more, failed := s.directGet(ctx, stream, subject, from)
	next = from
	for _, m := range messages {
		if m.odd {
			m, err = s.nextOnSubject(ctx, stream, subject, max(next, 1))
			if protocol.CodeOf(err) == protocol.NotFound {
				continue // the message was removed in the meantime
			}
			if err != nil {
				return next, false, err
			}
		} else if m.sequence < next {
			continue // this message was already visited, in place of an odd message that was removed
		}
		next = m.sequence + 1
		if proceed, err := visit(m); err != nil || !proceed {
			return next, false, err
		}
	}
	return next, more && next > from, failed
}

// directGet requests one batch of messages. After an error it also returns the messages that arrived before the error.
func (s *streams) directGet(ctx context.Context, stream, subject string, from uint64) (
	messages []*stored, more bool, err error) {
	select {
	case s.directs <- struct{}{}:
		defer func() { <-s.directs }()
	case <-ctx.Done():
		return nil, false, translate(ctx.Err(), "read "+stream)
	}
	inbox := s.nc.NewRespInbox()
	// A small channel saves memory: a synchronous subscription of the client buffers 64 Ki messages in 512 KB.
	answers := make(chan *nats.Msg, directBatch+8)
	sub, err := s.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, false, translate(err, "read "+stream)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only while the connection is being closed
	body, err := json.Marshal(
		map[string]any{"seq": from, "next_by_subj": subject, "batch": directBatch, "max_bytes": directBytes},
	)
	if err != nil {
		return nil, false, protocol.Errorf(protocol.Internal, "", "%v", err)
	}
	if err := s.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		if s.mayAskAgain(ctx, ctx) {
			err = errUnanswered
		}
		return nil, false, translate(err, "read "+stream)
	}
	return s.directAnswers(ctx, stream, answers)
}

// directAnswers collects the messages of one direct get, until the server ends the batch.
func (s *streams) directAnswers(ctx context.Context, stream string, answers <-chan *nats.Msg) (
	messages []*stored, more bool, err error) {
	batch := new(byte)
	for {
		msg, err := s.nextAnswer(ctx, answers)
		if err != nil {
			return messages, false, translate(err, "read "+stream)
		}
		switch status := status(msg); status {
		case "":
		case "204": // end of batch
			pending, _ := strconv.Atoi(msg.Header.Get("Nats-Num-Pending")) // without the header, nothing is pending
			return messages, pending > 0, nil
		case "404":
			return messages, false, nil
		case "503":
			return messages, false, translate(nats.ErrNoResponders, "read "+stream)
		default:
			return messages, false, protocol.Errorf(protocol.Internal, "", "read %s: status %s %s",
				stream, status, msg.Header.Get("Description"))
		}
		if !plain(msg) {
			messages = append(messages, &stored{odd: true})
			continue
		}
		m := &stored{subject: msg.Header.Get("Nats-Subject"), header: msg.Header, data: msg.Data, batch: batch}
		if m.sequence, err = strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			return messages, false, protocol.Errorf(protocol.Internal, "", "read %s: a message has no valid sequence", stream)
		}
		messages = append(messages, m)
	}
}

// nextAnswer waits for one message of an answer. The time limit applies to each message, because a longer answer takes
// longer in total.
func (s *streams) nextAnswer(ctx context.Context, answers <-chan *nats.Msg) (*nats.Msg, error) {
	select {
	case msg := <-answers:
		return msg, nil
	default:
	}
	try, end := s.awaitOnce(ctx, "")
	defer end()
	select {
	case msg := <-answers:
		return msg, nil
	case <-s.closed:
		return nil, nats.ErrConnectionClosed
	case <-try.Done():
		if s.mayAskAgain(ctx, try) {
			return nil, errUnanswered
		}
		return nil, causeOf(try, try.Err())
	}
}
