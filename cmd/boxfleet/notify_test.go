package main

import (
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

// manager is a service manager's socket.
type manager struct {
	mu   sync.Mutex
	told []string
}

// newManager listens on a socket, and makes it the NOTIFY_SOCKET of this process.
func newManager(t *testing.T) *manager {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	socket, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", address.Name)
	m, ended := &manager{}, make(chan struct{})
	go func() {
		defer close(ended)
		for data := make([]byte, 4096); ; {
			n, err := socket.Read(data)
			if err != nil {
				return // the test has closed the socket
			}
			m.mu.Lock()
			m.told = append(m.told, strings.Split(string(data[:n]), "\n")...)
			m.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		socket.Close()
		<-ended
	})
	return m
}

// hears waits for a line that contains text. It returns the lines since the last call.
func (m *manager) hears(t *testing.T, text string) (told string) {
	t.Helper()
	eventually.Holds(t, 10*time.Second, "the manager hears "+text, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, line := range m.told {
			if strings.Contains(line, text) {
				told, m.told = strings.Join(m.told[:i+1], "\n"), m.told[i+1:]
				return true
			}
		}
		return false
	})
	return told
}

func TestTheServiceManagerLearnsTheStateOfARole(t *testing.T) {
	clean(t)
	m := newManager(t)
	startNATS(t, 0)
	r := startRole(t, "coordinator")
	m.hears(t, "READY=1")
	m.hears(t, "STATUS=NATS: connected; coordinator: decides requests")
	m.hears(t, "WATCHDOG=1")
	r.stop()
	m.hears(t, "STOPPING=1")
}

func TestTheWatchdogHearsNothingWhileALoopIsStuck(t *testing.T) {
	m := newManager(t)
	h := &health{}
	p := h.part("worker")
	p.turn("engine", time.Hour)
	defer notifyHealth(t.Context(), h)()
	m.hears(t, "WATCHDOG=1")
	p.turn("engine", time.Nanosecond)
	m.hears(t, "STATUS=worker, engine: the loop is stuck")
	if told := m.hears(t, "STATUS=worker, engine: the loop is stuck"); strings.Contains(told, "WATCHDOG=1") {
		t.Errorf("the watchdog heard %q", told)
	}
	p.turn("engine", time.Hour)
	m.hears(t, "WATCHDOG=1")
}
