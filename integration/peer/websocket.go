package main

import (
	"context"
	"net/http"

	"github.com/coder/websocket"
)

const (
	socketAddress = ":7001"
	socketMost    = 16 << 20 // bytes of a message
)

// webSocket echoes each message that it gets. If a client sends "bye", it closes the connection and gives a reason.
func webSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	c.SetReadLimit(socketMost)
	for {
		kind, data, err := c.Read(context.Background())
		if err != nil {
			return
		}
		if string(data) == "bye" {
			_ = c.Close(websocket.StatusNormalClosure, "as you wish") // if it fails, the client gets another reason
			return
		}
		if err := c.Write(context.Background(), kind, data); err != nil {
			return
		}
	}
}
