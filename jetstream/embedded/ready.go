package embedded

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// readyWithin is how long a server may take to accept connections.
	readyWithin = 10 * time.Second
	// readyCheck is how often a start checks whether the server has given up.
	readyCheck = 100 * time.Millisecond
)

// startAndWait starts a server and waits until it accepts connections. A server that cannot start says so only in its
// log, so startAndWait reads the log.
func startAndWait(s *server.Server, store string) error {
	fatal := make(fatalLog, 1)
	s.SetLogger(fatal, false, false)
	s.Start()
	for end := time.Now().Add(readyWithin); !s.ReadyForConnections(readyCheck); {
		select {
		case why := <-fatal:
			s.Shutdown()
			err := protocol.Errorf(protocol.Unavailable, "", "the embedded NATS server with the store %s cannot start: %s",
				store, why)
			if strings.Contains(why, "address already in use") {
				return inUse{err}
			}
			return err
		default:
		}
		if time.Now().After(end) {
			s.Shutdown()
			return protocol.Errorf(protocol.Unavailable, "", "the embedded NATS server is not ready after %s "+
				"(is another server using the store %s?)", readyWithin, store)
		}
	}
	return nil
}

// fatalLog is a server's log. It keeps the first reason why the server gave up, and drops everything else.
type fatalLog chan string

func (f fatalLog) Fatalf(format string, v ...any) {
	select {
	case f <- fmt.Sprintf(format, v...):
	default:
	}
}

func (fatalLog) Noticef(string, ...any) {}
func (fatalLog) Warnf(string, ...any)   {}
func (fatalLog) Errorf(string, ...any)  {}
func (fatalLog) Debugf(string, ...any)  {}
func (fatalLog) Tracef(string, ...any)  {}
