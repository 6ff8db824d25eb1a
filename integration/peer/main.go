// Command peer is a server that tests run in sandboxes. It listens on TCP port 7000 and on the unix socket
// /tmp/peer.sock. The first line of a connection is a command. On TCP port 7001, it serves WebSockets.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

func main() {
	address := ":7000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	} else {
		go func() { log.Fatal(http.ListenAndServe(socketAddress, http.HandlerFunc(webSocket))) }()
	}
	_ = os.Remove("/tmp/peer.sock") // left by an earlier run; if it cannot be removed, Listen fails
	p := &program{}
	for _, l := range []struct{ network, address string }{{"tcp", address}, {"unix", "/tmp/peer.sock"}} {
		listener, err := net.Listen(l.network, l.address)
		if err != nil {
			log.Fatal(err)
		}
		go p.accept(listener)
	}
	select {}
}

type program struct {
	mu   sync.Mutex
	kept string // hash of the bytes that the last command keep received
}

func (p *program) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Print(err)
			continue
		}
		go p.serve(conn)
	}
}

func (p *program) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 64<<10)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	command, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch command {
	case "echo": // until the end of the input
		_, _ = io.Copy(conn, in)
	case "sum": // answers with the hash of the input
		fmt.Fprintln(conn, sum(in))
	case "keep": // keeps the hash of the input
		hash := sum(in)
		p.mu.Lock()
		p.kept = hash
		p.mu.Unlock()
	case "kept": // answers with the kept hash
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintln(conn, p.kept)
	case "send": // sends a number of bytes, then their hash
		p.send(conn, argument)
	case "reset":
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // if it fails, the test sees an end instead of a reset
		}
	case "stuck": // reads nothing until the program is killed
		select {}
	}
}

func sum(in io.Reader) string {
	hash := sha256.New()
	_, _ = io.Copy(hash, in) // the client compares the hash
	return fmt.Sprintf("%x", hash.Sum(nil))
}

func (p *program) send(conn net.Conn, argument string) {
	left, err := strconv.Atoi(argument)
	if err != nil {
		return
	}
	hash := sha256.New()
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i * 7)
	}
	out := io.MultiWriter(conn, hash)
	for n := byte(0); left > 0; n++ {
		block[0] = n
		part := block[:min(left, len(block))]
		if _, err := out.Write(part); err != nil {
			return
		}
		left -= len(part)
	}
	fmt.Fprintf(conn, "%x", hash.Sum(nil))
}
