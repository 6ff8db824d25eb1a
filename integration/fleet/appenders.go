package fleet

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// AsWorker opens a connection that appends to histories as a worker of the fleet does, with the worker's own key. The
// worker must be ready. The end of the test closes the connection.
func (f *Fleet) AsWorker(w *Process) *jetstream.Conn {
	f.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Creds: w.Role.Creds, TLS: w.Role.TLS, Name: w.Name,
		Logger: f.refused.logger()})
	if err != nil {
		f.TB.Fatal(err)
	}
	f.TB.Cleanup(conn.Close)
	if err := conn.Open(ctx); err != nil {
		f.TB.Fatal(err)
	}
	host := ""
	if w.Role.Creds != "" {
		id, _, err := jetstream.CredentialsIdentity(w.Role.Creds)
		if err != nil {
			f.TB.Fatal(err)
		}
		host = id.Host
	}
	if err := conn.RegisterWriter(ctx, protocol.OwnerWorker, w.Name, host); err != nil {
		f.TB.Fatal(err)
	}
	return conn
}

// Leads reports whether one of the fleet's servers leads a stream.
func (f *Fleet) Leads(s *embedded.Server, stream string) bool {
	f.TB.Helper()
	account := "$G"
	trusted, err := f.access.Operators()
	if err != nil {
		f.TB.Fatal(err)
	}
	if trusted != nil {
		account = trusted.Streams
	}
	return s.JetStreamIsStreamLeader(account, stream)
}
