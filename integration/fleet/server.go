package fleet

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

const serverKind = "server"

// startServer starts the NATS server in its own process. The test can kill the server and restart it on the same store.
func (f *Fleet) startServer() {
	f.TB.Helper()
	ports, err := embedded.FreePorts(1)
	if err != nil {
		f.TB.Fatal(err)
	}
	f.Server = f.start(serverKind, "n1",
		Role{NATS: fmt.Sprintf("nats://127.0.0.1:%d", ports[0]), StateDir: filepath.Join(f.StoreDir, "nats")})
}

// RestartServer kills the NATS server with SIGKILL and restarts it.
func (f *Fleet) RestartServer() {
	f.TB.Helper()
	f.Server.Kill()
	f.Server = f.Server.Restart()
}

// playServer runs a NATS server until ctx ends.
func playServer(ctx context.Context, r Role) error {
	address, err := url.Parse(r.URL)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		return err
	}
	trusted, err := r.Access.Operators()
	if err != nil {
		return err
	}
	s, err := embedded.Start(embedded.Config{Dir: r.StateDir, Name: r.Name, Port: port, Operators: trusted})
	if err != nil {
		return err
	}
	defer s.Stop()
	fmt.Println(readyLine)
	<-ctx.Done()
	return nil
}
