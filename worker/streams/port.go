package streams

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/files"
)

const (
	portPeriod  = time.Second     // pause between two tries
	portTimeout = 5 * time.Second // limit on one try
	// portMargin is how long before the client's deadline the worker answers, so that the answer arrives in time.
	portMargin = 250 * time.Millisecond
	// statusMost limits how many bytes of a response are read to find its status.
	statusMost = 4 << 10
)

// waitForPort waits until a server in a container answers.
func waitForPort(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error) {
	var r protocol.PortWait
	if err := protocol.DecodeStrict(protocol.ContentMsgpack, c.Open.Request, &r); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		early := min(portMargin, time.Until(deadline)/2)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-early))
		defer cancel()
	}
	var answer *protocol.PortAnswer
	for {
		last, err := tryPort(ctx, c, &r)
		if err != nil {
			return nil, err
		}
		if answer == nil || last.Ready || ctx.Err() == nil { // a try that was cut short says less than the one before
			answer = last
		}
		if answer.Ready || !backoff.Sleep(ctx, portPeriod) {
			return &jetstream.StreamAnswer{Result: protocol.Encode(answer)}, nil
		}
	}
}

// tryPort connects once, and sends the HTTP request if there is one. It returns an error if no further try can succeed.
func tryPort(ctx context.Context, c *Call, r *protocol.PortWait) (*protocol.PortAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	defer c.end() // the next try uses the container that runs then
	session, err := c.Files(ctx, r.Service, "", "")
	if err == nil {
		return askPort(ctx, session, r), nil
	}
	switch protocol.CodeOf(err) {
	case protocol.Unavailable, protocol.DeadlineExceeded, protocol.ResourceExhausted:
		return &protocol.PortAnswer{Found: protocol.AsError(err).Message}, nil
	}
	return nil, err
}

func askPort(ctx context.Context, session *files.Session, r *protocol.PortWait) *protocol.PortAnswer {
	conn, err := session.Dial(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(r.Port)))
	if err != nil {
		return &protocol.PortAnswer{Found: protocol.AsError(err).Message}
	}
	defer conn.Close()
	if r.Path == "" {
		return &protocol.PortAnswer{Ready: true}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	status, err := statusOf(conn, r)
	switch {
	case ctx.Err() != nil:
		return &protocol.PortAnswer{Found: "the server did not answer the HTTP request in time"}
	case err != nil:
		return &protocol.PortAnswer{Found: err.Error()}
	case r.Accepts(status):
		return &protocol.PortAnswer{Ready: true, Status: status}
	}
	return &protocol.PortAnswer{Status: status, Found: fmt.Sprintf("the server answers with status %d", status)}
}

// statusOf sends an HTTP request, and reads the first line of the response. The server is code of the sandbox, so no
// more than that line is read.
func statusOf(conn net.Conn, r *protocol.PortWait) (status int, err error) {
	_, err = fmt.Fprintf(conn,
		"GET %s HTTP/1.1\r\nHost: localhost:%d\r\nUser-Agent: boxfleet\r\nConnection: close\r\n\r\n",
		r.Path, r.Port)
	if err != nil {
		return 0, fmt.Errorf("could not send the HTTP request: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, statusMost)).ReadString('\n')
	if err != nil {
		return 0, errors.New("the server closed the connection without an HTTP response")
	}
	var minor int
	if _, err := fmt.Sscanf(line, "HTTP/1.%d %d", &minor, &status); err != nil {
		return 0, errors.New("the server's answer is not an HTTP response")
	}
	return status, nil
}
