package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAPortThatTheUserSetIsNotChanged(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	if _, _, err := listenAt(at, false, false); err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("the port is set and in use: %v", err)
	}
	if host, port, err := listenAt(at, true, false); err != nil || host != "127.0.0.1" || port != 0 {
		t.Errorf("the port is the default and in use: got %s, %d, %v", host, port, err)
	}
	for name, given := range map[string]func(t *testing.T) []string{
		"not set":   func(t *testing.T) []string { clean(t); return nil },
		"by a flag": func(t *testing.T) []string { clean(t); return []string{"--listen", defaultListen} },
		"in the file": func(t *testing.T) []string {
			write(t, clean(t),
				"up: {listen: \""+defaultListen+"\"}\n")
			return nil
		},
		"in environment": func(t *testing.T) []string { clean(t); t.Setenv("BOXFLEET_UP_LISTEN", defaultListen); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := configured(t, "up", given(t)...)
			if err != nil || c.Listen != defaultListen || c.ListenGiven != (name != "not set") {
				t.Errorf("ListenGiven is %v, Listen is %q, error %v", c.ListenGiven, c.Listen, err)
			}
		})
	}
}

func TestUpListensBeyondLoopbackOnlyWithListenInsecurely(t *testing.T) {
	for listen, loopback := range map[string]bool{"127.0.0.1": true, "127.3.2.1:0": true, "[::1]:0": true,
		"localhost:0": true, ":0": true,
		"0.0.0.0": false, "0.0.0.0:0": false, "[::]:0": false, "10.1.2.3": false} {
		if _, _, err := listenAt(listen, false, false); (err == nil) != loopback || err != nil && codeOf(err) != exitUsage {
			t.Errorf("%s: %v", listen, err)
		}
		if _, _, err := listenAt(listen, false, true); err != nil {
			t.Errorf("%s, insecurely: %v", listen, err)
		}
	}
	clean(t)
	if code, _, stderr := call(t.Context(), "", "up", "--listen", "0.0.0.0"); code != exitUsage ||
		!strings.Contains(stderr, "--listen-insecurely") {
		t.Errorf("up: %d, %s", code, stderr)
	}
}

func TestWithoutAHomeNothingIsWrittenToTheRoot(t *testing.T) {
	for _, variable := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(variable, "")
	}
	for line, want := range map[string]string{
		"up": "set HOME, XDG_DATA_HOME, or --data-dir",
		"worker --nats nats://127.0.0.1:1 --name w": "set HOME, XDG_DATA_HOME, --data-dir or --state-dir",
	} {
		if code, _, stderr := call(t.Context(), "", strings.Fields(line)...); code != exitUsage ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s", line, code, stderr)
		}
	}
	if code, _, stderr := call(t.Context(), "", "ping", "--nats", "nats://127.0.0.1:1"); code != exitFailure ||
		!strings.Contains(stderr, "unavailable") {
		t.Errorf("a client without a home: exit code %d, %s", code, stderr)
	}
	if file, data := usualFile(), dataDir(); file != "" || data != "" {
		t.Errorf("without a home: configuration file %q, data directory %q", file, data)
	}
}

func TestTheErrorSaysThatAnUpBelongsToAnotherUser(t *testing.T) {
	clean(t)
	dir := writeConnection(t, connection{URL: startNATSOfAnotherUser(t).ClientURL()})
	code, _, stderr := call(t.Context(), "", "ping")
	if code != exitFailure || !strings.Contains(stderr,
		"permission_denied: the `boxfleet up` of this machine has another data directory") {
		t.Errorf("an up of the same user: exit code %d, %s", code, stderr)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	const nobody = 65534
	listening := make(chan net.Listener)
	go func() { // the thread keeps the other user's id, so it must end with its goroutine
		runtime.LockOSThread()
		unix.Setfsuid(nobody) // new sockets belong to this user
		l, _ := net.Listen("tcp", "127.0.0.1:0")
		listening <- l
	}()
	l := <-listening
	if l == nil {
		t.Fatal("the user nobody cannot listen")
	}
	defer l.Close()
	if got := listenerOf("nats://127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)); got != nobody {
		t.Errorf("the listener belongs to uid %d, want %d", got, nobody)
	}
	if err := os.Chown(dir, nobody, -1); err != nil {
		t.Fatal(err)
	}
	if got := ownerOf(filepath.Join(dir, "not", "there")); got != nobody {
		t.Errorf("the owner of the directory is uid %d, want %d", got, nobody)
	}
	if err := notOurs(nobody); protocol.CodeOf(err) != protocol.PermissionDenied ||
		!strings.Contains(err.Error(), "belongs to nobody: run this as that user") {
		t.Error(err)
	}
}
