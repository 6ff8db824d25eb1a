package embedded

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Another process may take a port after Start has checked that the port is free.
func TestAPortThatIsTakenDuringTheStartIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	for name, opts := range map[string]*server.Options{
		"the port for clients": {Host: "127.0.0.1", Port: taken},
		"the port for the other members": {Host: "127.0.0.1", Port: server.RANDOM_PORT,
			Cluster: server.ClusterOpts{Name: "boxfleet", Host: "127.0.0.1", Port: taken}},
	} {
		opts.NoSigs = true
		s, err := server.NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := startAndWait(s, "of the test"); !errors.Is(err, errPortInUse) {
			t.Errorf("%s is in use, but the start returned %v", name, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s is in use, which the start reported only after %s", name, took)
		}
		s.WaitForShutdown()
	}
}
