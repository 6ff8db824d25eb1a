package integration

import (
	"context"
	"encoding/binary"
	"io"
	"testing"

	"github.com/boxfleet/boxfleet/sdk"
)

// postgresQuery asks a PostgreSQL server in a service over a connection of the client, and returns the first value of
// the last row. It speaks version 3 of the protocol of PostgreSQL.
func postgresQuery(ctx context.Context, t *testing.T, s *sdk.Sandbox, service, query string) (value string) {
	t.Helper()
	conn, err := s.DialContext(ctx, "tcp", "localhost:5432", sdk.WithService(service))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(kind string, content []byte) {
		t.Helper()
		message := binary.BigEndian.AppendUint32([]byte(kind), uint32(4+len(content)))
		if _, err := conn.Write(append(message, content...)); err != nil {
			t.Fatal(err)
		}
	}
	awaitReady := func() {
		t.Helper()
		for kind := byte(0); kind != 'Z'; { // ready for a query
			var head [5]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				t.Fatal(err)
			}
			content := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
			if _, err := io.ReadFull(conn, content); err != nil {
				t.Fatal(err)
			}
			switch kind = head[0]; kind {
			case 'D': // a row: the number of values, and the length of the first one before its bytes
				value = string(content[6:][:binary.BigEndian.Uint32(content[2:])])
			case 'E':
				t.Fatalf("the server answers %q with %q", query, content)
			}
		}
	}
	const version3 = 3 << 16
	send("", append(binary.BigEndian.AppendUint32(nil, version3), "user\x00postgres\x00\x00"...))
	awaitReady()
	send("Q", append([]byte(query), 0))
	awaitReady()
	send("X", nil)
	return value
}
