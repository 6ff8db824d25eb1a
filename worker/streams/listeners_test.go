package streams

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestListenersAreThoseOfTheKernel(t *testing.T) {
	process, err := os.OpenRoot("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	for network, address := range map[string]string{"tcp4": "127.1.2.3:0", "tcp6": "[::1]:0"} {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Logf("this machine has no %s: %v", network, err)
			continue
		}
		at := l.Addr().(*net.TCPAddr).AddrPort()
		conn, err := net.Dial("tcp", at.String()) // it is in the table, too
		if err != nil {
			t.Fatal(err)
		}
		client := conn.LocalAddr().(*net.TCPAddr).AddrPort()
		found, err := listeners(process)
		if err != nil || !slices.Contains(found[int(at.Port())], at.Addr()) {
			t.Errorf("%s: found %v, %v", at, found, err)
		}
		if slices.Contains(found[int(client.Port())], client.Addr()) {
			t.Errorf("%s is only a connection", client)
		}
		conn.Close()
		l.Close()
		if found, err = listeners(process); err != nil || slices.Contains(found[int(at.Port())], at.Addr()) {
			t.Errorf("%s was closed, and is among %v, %v", at, found, err)
		}
	}
}

// A table of connections may be long, and is not read. Nor is the engine's own resolver a server of the sandbox.
func TestATableIsReadUpToItsFirstConnection(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0B00007F:8235 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: not an address 0A
   3: 0100007F:0016 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   4: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1 0 100 0 0 10 0
`
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/net", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/net/tcp", []byte(strings.Replace(table, "not an address", "00000000:X 0:0", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	process, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	found, err := listeners(process)
	if err != nil || len(found) != 1 || len(found[8080]) != 1 || found[8080][0] != netip.IPv4Unspecified() {
		t.Errorf("found %v, %v", found, err)
	}
	many := strings.Split(table, "\n")[0] + "\n" + strings.Repeat(strings.Split(table, "\n")[2]+"\n",
		protocol.MaxPortListeners+1)
	if err := os.WriteFile(dir+"/net/tcp", []byte(many), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = listeners(process)
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonTooLarge {
		t.Errorf("too many listeners: got %v", err)
	}
}
