package sdk

import (
	"context"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// outputHost is the id of the host from which tests publish output. [ServePages] says that every sandbox is on this
// host.
const outputHost = "HOSTA"

// ServePages answers reads of histories and output, as a coordinator does, until the test ends. It decides no requests,
// so a test can write the log itself.
func ServePages(t *testing.T, conn *jetstream.Conn) {
	t.Helper()
	stopElected, err := conn.OnLoss(func() {
		if err := conn.PublishStatus(&protocol.Status{Version: protocol.Version, Elected: true}); err != nil {
			t.Logf("publish the status: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	serving, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		hosts := func(context.Context, string, string) ([]protocol.OutputHost, error) {
			return []protocol.OutputHost{{ID: outputHost}}, nil
		}
		if err := conn.ServeReads(ctx, "1.0.0", conn.PageEndpoints(hosts), func() { close(serving) }); ctx.Err() == nil {
			t.Errorf("serve pages: %v", err)
		}
	}()
	t.Cleanup(func() { stopElected(); stop(); <-ended })
	<-serving
}
