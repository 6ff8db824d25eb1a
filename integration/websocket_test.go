package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// webSocket speaks with the peer over a WebSocket: many messages, large ones, a ping, and the end.
func (s served) webSocket(ctx context.Context, t *testing.T) {
	const most = 8 << 20 // bytes of a message
	transport := &http.Transport{DialContext: s.box.Dialer()}
	defer transport.CloseIdleConnections()
	var c *websocket.Conn
	s.f.Eventually(30*time.Second, "the peer serves WebSockets", func() (err error) {
		c, _, err = websocket.Dial(ctx, "ws://localhost:7001/",
			&websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
		return err
	})
	defer c.CloseNow()
	c.SetReadLimit(2 * most)
	for i := range 200 {
		echoMessage(ctx, t, c, websocket.MessageText, fmt.Appendf(nil, "message %d", i))
	}
	for _, size := range []int{0, 1, 125, 126, 65_535, 65_536, most} {
		echoMessage(ctx, t, c, websocket.MessageBinary, bytes.Repeat([]byte{byte(size), 0xff, 7}, size/3+1)[:size])
	}
	read := make(chan error, 1)
	go func() {
		_, _, err := c.Read(ctx) // a pong is taken by a reader
		read <- err
	}()
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Write(ctx, websocket.MessageText, []byte("bye")); err != nil {
		t.Fatal(err)
	}
	var ended websocket.CloseError
	if err := <-read; !errors.As(err, &ended) || ended.Code != websocket.StatusNormalClosure ||
		ended.Reason != "as you wish" {
		t.Errorf("the end of the WebSocket: %v", err)
	}
}

func echoMessage(ctx context.Context, t *testing.T, c *websocket.Conn, kind websocket.MessageType, data []byte) {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- c.Write(ctx, kind, data) }()
	got, answer, err := c.Read(ctx)
	if err := errors.Join(err, <-sent); err != nil || got != kind || !bytes.Equal(answer, data) {
		t.Fatalf("a message of %d bytes came back as %d, type %v: %v", len(data), len(answer), got, err)
	}
}
