package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

func TestALoopThatDoesNotTurnInTimeIsStuck(t *testing.T) {
	t.Parallel()
	h := &health{}
	p := h.part("worker")
	well := func(want bool, says string) {
		t.Helper()
		if alive, text := h.liveness(); alive != want || !strings.Contains(text, says) {
			t.Errorf("alive: %t, %s; want %t, %s", alive, text, want, says)
		}
	}
	well(true, "turn: 0")
	p.turn("engine", time.Hour)
	p.turn("heartbeats", time.Nanosecond)
	well(false, "worker, heartbeats: the loop is stuck")
	p.turn("heartbeats", time.Hour)
	well(true, "turn: 2")
	p.turn("heartbeats", time.Nanosecond)
	p.turn("heartbeats", 0) // the loop has ended
	well(true, "turn: 1")
}

func TestAProcessThatStopsIsAliveButNotReady(t *testing.T) {
	t.Parallel()
	cfg := &config{HealthListen: "127.0.0.1:" + freePort(t)}
	srv := &servers{&console{stdout: io.Discard, config: cfg}, cfg}
	ctx, cancel := context.WithCancel(t.Context())
	h := &health{}
	h.part("worker").say(true, "works")
	stop, err := srv.serveHealth(ctx, h)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r := &role{health: "http://" + cfg.HealthListen}
	r.await(t, http.StatusOK, "works")
	cancel()
	r.await(t, http.StatusServiceUnavailable, "stopping")
}

// Connections that send nothing neither use up the files of the process nor keep the page from others for long.
func TestIdleConnectionsToTheHealthPageAreLimited(t *testing.T) {
	clean(t)
	startNATS(t, 0)
	r := startRole(t, "coordinator")
	r.await(t, http.StatusOK, "places sandboxes")
	before := openFiles(t)
	const idle = 2 * healthAtOnce
	for range idle {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.health, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	eventually.Holds(t, patience, "the server has accepted connections", func() bool {
		return openFiles(t)-before > idle+healthAtOnce/2
	})
	if more := openFiles(t) - before - idle; more > healthAtOnce+20 {
		t.Errorf("%d connections use %d files of the process", idle, more)
	}
	began := time.Now()
	eventually.Holds(t, patience, "the page answers", func() bool {
		code, _ := r.ask("/healthz")
		return code == http.StatusOK
	})
	if took := time.Since(began); took > 4*healthWithin {
		t.Errorf("the page answered after %s", took)
	}
	r.ends(t, 2*time.Second)
}

// openFiles returns how many files this process has opened.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestACoordinatorIsNotReadyWhileItsLogTakesNoWork(t *testing.T) {
	clean(t)
	server := startNATS(t, 0)
	r := startRole(t, "coordinator")
	r.await(t, http.StatusOK, "places sandboxes")
	r.turns(t, 2)
	if err := server.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	r.await(t, http.StatusServiceUnavailable, "the event log does not answer")
}

func TestAWorkerIsNotReadyWhileItsEngineDoesNotAnswer(t *testing.T) {
	fleetOfOne(t)
	startWithoutHosts(t, 0)
	socket := filepath.Join(t.TempDir(), "docker.sock")
	stop := relayEngine(t, socket)
	r := startRole(t, "worker", "--engine", "unix://"+socket, "--state-dir", t.TempDir(), "--name", "w1")
	r.await(t, http.StatusOK, "the engine answers")
	r.turns(t, 2)
	stop()
	r.await(t, http.StatusServiceUnavailable, "worker: ")
	relayEngine(t, socket)
	r.await(t, http.StatusOK, "the engine answers")
	removeHostMark(t)
	r.ends(t, 20*time.Second)
}

// turns waits until the given number of the role's main loops turn. A loop begins soon after the role is ready.
func (r *role) turns(t *testing.T, want int) {
	t.Helper()
	eventually.Holds(t, patience, fmt.Sprintf("%d main loops turn", want), func() bool {
		code, text := r.ask("/healthz")
		return code == http.StatusOK && strings.Contains(text, fmt.Sprintf("main loops that turn: %d", want))
	})
}

// relayEngine makes the engine reachable at another socket until stop is called.
func relayEngine(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			engine, err := net.Dial("unix", "/var/run/docker.sock")
			if err != nil {
				client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{engine, client}, {client, engine}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // ends when a side is closed
					client.Close()
					engine.Close()
				}()
			}
			go func() {
				<-ended
				client.Close()
			}()
		}
	}()
	stop = func() {
		select {
		case <-ended:
		default:
			close(ended)
			listener.Close()
		}
	}
	t.Cleanup(stop)
	return stop
}
