package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// BenchmarkCreate creates sandboxes one after another, once without names and once with names.
func BenchmarkCreate(b *testing.B) {
	for _, named := range []bool{false, true} {
		b.Run(fmt.Sprintf("named=%t", named), func(b *testing.B) {
			server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer server.Stop()
			connect := func(name string) *jetstream.Conn {
				conn, err := jetstream.Connect(b.Context(), jetstream.Config{InProcess: server, Name: name})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(conn.Close)
				return conn
			}
			conn := connect("test")
			defer runUntilReady(b, Config{Name: "c1", Conn: connect("c1")})()
			answers, err := conn.Answers()
			if err != nil {
				b.Fatal(err)
			}
			defer answers.Close()
			for i := 0; b.Loop(); i++ {
				id := fmt.Sprintf("01%024d", i)
				inbox, answer, stop := answers.Expect(id)
				r := protocol.Request{Version: protocol.Version, Sandbox: &protocol.SandboxSpec{Image: "i"}}
				if named {
					r.Name = fmt.Sprint("n", i)
				}
				if err := conn.Submit(b.Context(), "default", protocol.VerbCreate, id, id, inbox,
					protocol.Encode(&r)); err != nil {
					b.Fatal(err)
				}
				select {
				case reply := <-answer:
					if reply.Error != nil {
						b.Fatal(reply.Error)
					}
				case <-time.After(time.Minute):
					b.Fatal("a create got no answer")
				}
				stop()
			}
		})
	}
}
