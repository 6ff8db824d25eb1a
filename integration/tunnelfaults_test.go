package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// download asks the peer for a number of bytes, and checks their hash. during is called with the connection when the
// first MiB has arrived.
func download(conn net.Conn, bytes int64, during func()) error {
	if _, err := fmt.Fprintf(conn, "send %d\n", bytes); err != nil {
		return err
	}
	hash := sha256.New()
	first := min(bytes, 1<<20)
	if _, err := io.CopyN(hash, conn, first); err != nil {
		return err
	}
	during()
	if _, err := io.CopyN(hash, conn, bytes-first); err != nil {
		return err
	}
	sum, err := io.ReadAll(conn)
	if want := fmt.Sprintf("%x", hash.Sum(nil)); err == nil && string(sum) != want {
		err = fmt.Errorf("the bytes have the hash %s, and the server sent %s", want, sum)
	}
	return err
}

func TestATunnelCarriesAGigabyteAndLeavesNothing(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(5 * time.Minute)
	s := serve(ctx, t, f, "gigabyte", nil)
	worker := f.Processes("worker")[0]
	s.dial(ctx, "tcp", "localhost:7000").Close()
	before := worker.Descriptors()
	conn := s.dial(ctx, "tcp", "localhost:7000")
	began := time.Now()
	if err := download(conn, 1<<30, func() {}); err != nil {
		t.Error(err)
	}
	t.Logf("1 GiB took %s", time.Since(began))
	conn.Close()
	s.many(ctx, t, 50)
	memory := worker.PeakMemory()
	const stuckConnections = 20
	for range stuckConnections { // a client that stops reading, and a server that does
		unread := s.dial(ctx, "tcp", "localhost:7000")
		if _, err := fmt.Fprintf(unread, "send %d\n", 1<<30); err != nil {
			t.Fatal(err)
		}
		stuck := s.dial(ctx, "tcp", "localhost:7000")
		fillUp(t, stuck)
	}
	const allowed = 64 << 20 // the windows and buffers of 40 connections, and what the runtime adds
	if grown := worker.PeakMemory() - memory; grown > allowed {
		t.Errorf("with %d connections that nobody reads, the worker has %d MiB more", 2*stuckConnections, grown>>20)
	}
	if err := s.box.Delete(ctx); err != nil { // ends the connections
		t.Fatal(err)
	}
	f.Eventually(20*time.Second, "the worker has closed its descriptors", func() error {
		if now := worker.Descriptors(); now > before {
			return fmt.Errorf("%d descriptors, %d before", now, before)
		}
		return nil
	})
}

// fillUp writes to a server that does not read, until nothing more fits.
func fillUp(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Write([]byte("stuck\n"))
	for block := make([]byte, 1<<20); err == nil; {
		_, err = conn.Write(block)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write to a server that does not read: %v", err)
	}
}

func TestATunnelEndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(3 * time.Minute)
	s := serve(ctx, t, f, "ends", nil)
	conn := s.dial(ctx, "tcp", "localhost:7000")
	var group errgroup.Group
	var ended error
	err := download(conn, 1<<40, func() {
		group.Go(func() error { return s.box.Stop(ctx) })
		_, ended = io.Copy(io.Discard, conn)
	})
	if err == nil {
		t.Error("the connection survived its sandbox")
	}
	wantRefusal(t, ended, protocol.FailedPrecondition, protocol.ReasonSandboxStopped)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	_, err = s.box.DialContext(ctx, "tcp", "localhost:7000")
	wantRefusal(t, err, protocol.FailedPrecondition, protocol.ReasonSandboxNotReady, protocol.ReasonSandboxStopped)
	if err := s.box.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	conn = s.dial(ctx, "tcp", "localhost:7000")
	group.Go(func() error { return s.box.Delete(ctx) })
	_, ended = io.Copy(io.Discard, conn)
	wantRefusal(t, ended, protocol.FailedPrecondition, protocol.ReasonSandboxDeleted)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// noticedWithin is how soon a client must notice a killed worker whose successor runs, on a busy machine.
const noticedWithin = 25 * time.Second

func TestATunnelSurvivesNATSAndNotItsWorker(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Killable: true})
	ctx := f.Context(4 * time.Minute)
	s := serve(ctx, t, f, "restarts", nil)
	worker := f.Processes("worker")[0]
	s.dial(ctx, "tcp", "localhost:7000").Close()
	before := usageOf(worker)
	held := s.echoing(ctx, t)
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if err := download(conn, 256<<20, f.RestartServer); err != nil {
		t.Errorf("NATS was killed in the middle: %v", err)
	}
	for i, c := range held {
		if err := echoed(c); err != nil {
			t.Errorf("NATS was killed beside connection %d: %v", i, err)
		}
		c.Close()
	}
	conn.Close()
	wantNoMore(f, worker, before)
	held = s.echoing(ctx, t)
	conn = s.dial(ctx, "tcp", "localhost:7000")
	began := time.Now()
	err := download(conn, 1<<40, func() {
		worker.Kill()
		worker = worker.Restart()
	})
	wantRefusal(t, err, protocol.Unavailable, protocol.ReasonStreamLost)
	for _, c := range held {
		_, err := c.Read(make([]byte, 1))
		wantRefusal(t, err, protocol.Unavailable, protocol.ReasonStreamLost)
	}
	if took := time.Since(began); took > noticedWithin {
		t.Errorf("after kill -9 of the worker, the client learned it in %s", took)
	}
	var dials errgroup.Group
	for range 100 { // some of their requests die with the worker
		dials.Go(func() error { return s.echoesWithin(ctx, 20*time.Second) })
	}
	worker.Kill()
	worker = worker.Restart()
	if err := dials.Wait(); err != nil {
		t.Errorf("a connection that was opened while the worker was killed: %v", err)
	}
	wantNoMore(f, worker, before)
	conn = s.dial(ctx, "tcp", "localhost:7000")
	err = download(conn, 1<<40, worker.Stop)
	wantRefusal(t, err, protocol.Unavailable, protocol.ReasonStreamLost)
	worker.Restart()
	s.dial(ctx, "tcp", "localhost:7000")
}

// echoing opens connections to an echo, and uses each once.
func (s served) echoing(ctx context.Context, t *testing.T) (conns []net.Conn) {
	t.Helper()
	for range streamsThrough {
		c := s.dial(ctx, "tcp", "localhost:7000")
		if _, err := io.WriteString(c, "echo\n"); err != nil {
			t.Fatal(err)
		}
		if err := echoed(c); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	return conns
}

// echoed sends a line through a connection to an echo, and reads it.
func echoed(conn net.Conn) error {
	if _, err := io.WriteString(conn, "ping\n"); err != nil {
		return err
	}
	got := make([]byte, len("ping\n"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "ping\n" {
		return fmt.Errorf("the echo is %q, %w", got, err)
	}
	return nil
}

// echoesWithin opens a connection and sends a line through it. If the connection is lost with its worker, it opens
// another one.
func (s served) echoesWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		conn, err := s.box.DialContext(ctx, "tcp", "localhost:7000")
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		if _, err = io.WriteString(conn, "echo\n"); err == nil {
			err = echoed(conn)
		}
		stop()
		conn.Close()
		if err == nil || protocol.AsError(err).Reason != protocol.ReasonStreamLost || ctx.Err() != nil {
			return err
		}
	}
}

func TestX17_AnOpenStreamKeepsASandboxFromIdling(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	const ttl = 3 * time.Second
	withTTL := func(spec *protocol.SandboxSpec) { spec.IdleTTL = protocol.Duration(ttl) }
	watched := filesOf(ctx, t, f, "x17watch", withTTL)
	var group errgroup.Group
	group.Go(func() error { return watched.watchKeepsAlive(ctx, ttl) })
	fed := filesOf(ctx, t, f, "x17input", withTTL)
	x := startCat(ctx, t, fed.box, "cat")
	input := attach(ctx, t, x)
	group.Go(func() error { return fed.inputKeepsAlive(ctx, x, input, ttl) })
	s := serve(ctx, t, f, "x17tunnel", withTTL)
	conn := s.dial(ctx, "tcp", "localhost:7000")
	if _, err := io.WriteString(conn, "echo\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(3 * ttl)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection ended before three times the idle time: %v", err)
	}
	ended := time.Now()
	conn.Close()
	if err := s.box.WaitStopped(ctx); err != nil {
		t.Fatal(err)
	}
	if reason, idle := s.box.Info().Reason, time.Since(ended); reason != protocol.ReasonIdleTTL || idle < ttl*2/3 {
		t.Errorf("the sandbox was stopped with reason %q, %s after the connection", reason, idle)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// watchKeepsAlive watches a directory for three times the idle time, in which nothing changes. Then it waits until the
// sandbox is stopped as idle.
func (b boxed) watchKeepsAlive(ctx context.Context, ttl time.Duration) error {
	watching, cancel := context.WithTimeout(ctx, 3*ttl)
	defer cancel()
	for e, err := range b.Watch(watching, "/tmp") {
		if err == nil && e.Kind == protocol.FileWatching {
			continue
		}
		if protocol.CodeOf(err) != protocol.DeadlineExceeded || watching.Err() == nil {
			return fmt.Errorf("the watch ended before three times the idle time, with %+v and %w", e, err)
		}
	}
	ended := time.Now()
	if err := b.box.WaitStopped(ctx); err != nil {
		return err
	}
	if reason, idle := b.box.Info().Reason, time.Since(ended); reason != protocol.ReasonIdleTTL || idle < ttl*2/3 {
		return fmt.Errorf("the sandbox was stopped with reason %q, %s after the watch", reason, idle)
	}
	return nil
}

// inputKeepsAlive writes nothing to an open input for three times the idle time, and then uses it. Then it waits until
// the sandbox is stopped as idle.
func (b boxed) inputKeepsAlive(ctx context.Context, x *sdk.Exec, input io.WriteCloser, ttl time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, 3*ttl)
	defer cancel()
	if _, err := x.Wait(waiting); protocol.CodeOf(err) != protocol.DeadlineExceeded {
		return fmt.Errorf("the exec ended before three times the idle time: %w", err)
	}
	if _, err := io.WriteString(input, "late"); err != nil {
		return err
	}
	if err := input.Close(); err != nil {
		return err
	}
	r, err := x.Wait(ctx)
	if err != nil || string(r.Stdout) != "late" {
		return fmt.Errorf("cat printed %+v: %w", r, err)
	}
	if err := b.box.WaitStopped(ctx); err != nil {
		return err
	}
	if reason, idle := b.box.Info().Reason, time.Since(r.Ended); reason != protocol.ReasonIdleTTL || idle < ttl*2/3 {
		return fmt.Errorf("the sandbox was stopped with reason %q, %s after the input", reason, idle)
	}
	return nil
}

func TestTheHistoryTellsWhoDialledWhat(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	s := serve(ctx, t, f, "told", nil)
	const connections, size = 30, 100_000
	for range connections {
		conn := s.dial(ctx, "tcp", "localhost:7000")
		if err := exchange(conn, "sum\n", make([]byte, size), func(c net.Conn) { closeWrite(t, c) }); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	events := 0
	f.Eventually(30*time.Second, "the history tells about all connections", func() error {
		events = 0
		var all protocol.StreamUse
		for e, err := range s.box.Events(ctx) {
			if err != nil {
				return err
			}
			for _, u := range e.Streams {
				if u.Kind != protocol.StreamKindDial || u.Address != "localhost:7000" || u.User == "" {
					t.Errorf("the history tells of %+v", u)
				}
				all.Opened, all.Closed, all.Open = all.Opened+u.Opened, all.Closed+u.Closed, u.Open
				all.Sent, all.Received = all.Sent+u.Sent, all.Received+u.Received
			}
			if e.Kind == protocol.SandboxUsed {
				events++
			}
		}
		want := protocol.StreamUse{Opened: connections, Closed: connections, Sent: connections * (size + 4),
			Received: connections * (2*sha256.Size + 1)}
		if all.Opened != want.Opened || all.Closed != want.Closed || all.Open != 0 || all.Sent != want.Sent ||
			all.Received != want.Received {
			return fmt.Errorf("the history tells of %+v, want %+v", all, want)
		}
		return nil
	})
	if events > 3 {
		t.Errorf("%d connections within seconds made %d events", connections, events)
	}
}

func TestWaitForPortWaitsForAServerThatComesLater(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	box, err := f.Client.Create(ctx, spec, sdk.WithID("later"))
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.Go(func() error { return box.WaitForHTTP(ctx, 8080, "/index.html", 200) })
	group.Go(func() error { return box.WaitForPort(ctx, 8080) })
	short, cancel := context.WithTimeout(ctx, 2500*time.Millisecond)
	defer cancel()
	wantRefusal(t, box.WaitForPort(short, 8080), protocol.DeadlineExceeded, "")
	worker := f.Processes("worker")[0]
	worker.Kill()
	worker.Restart()
	if _, err := box.Start(ctx, script("echo x >/tmp/index.html; exec httpd -f -p 8080 -h /tmp")); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	for field, err := range map[string]error{
		"port": box.WaitForPort(ctx, 0), "path": box.WaitForHTTP(ctx, 80, "x", 200),
		"status": box.WaitForHTTP(ctx, 80, "/", 20), "service": box.WaitForPort(ctx, 80, sdk.WithService("none")),
	} {
		wantRefusal(t, err, protocol.InvalidArgument, "")
		if got := protocol.AsError(err).Field; got != field {
			t.Errorf("%v names the field %q, want %q", err, got, field)
		}
	}
}

// The server answers once, and then leaves the connections of its clients open without an answer.
func TestAnExpiredWaitTellsWhatTheServerAnsweredLast(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	box := f.Create("mute")
	if _, err := box.Start(ctx, script(`exec nc -ll -p 8080 -e sh -c '
		test -e /tmp/answered && exec sleep 100; touch /tmp/answered
		printf "HTTP/1.0 404 Not Found\r\n\r\n"'`)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := box.WaitForHTTP(short, 8080, "/", 200)
	wantRefusal(t, err, protocol.DeadlineExceeded, "")
	if !strings.Contains(err.Error(), "status 404") {
		t.Errorf("the error does not tell of the last answer: %v", err)
	}
}

func TestOnlyUsersOfTheTenantReachServers(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	f.MayBeRefused()
	ctx := f.Context(2 * time.Minute)
	s := serve(ctx, t, f, "rights", nil)
	s.dial(ctx, "tcp", "localhost:7000")
	for who, options := range map[string]sdk.Options{
		"a viewer":       f.AsViewer(sdk.Options{RequestTimeout: time.Second}),
		"another tenant": f.Options(sdk.Options{Tenant: "other", RequestTimeout: time.Second}),
	} {
		c, err := sdk.Connect(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := c.Sandbox("rights").DialContext(short, "tcp", "localhost:7000")
		if err == nil {
			conn.Close()
		}
		switch protocol.CodeOf(err) {
		case protocol.PermissionDenied, protocol.NotFound:
			t.Logf("%s: %v", who, err)
		default:
			t.Errorf("%s dials: %v", who, err)
		}
		if err := c.Sandbox("rights").WaitForPort(short, 7000); err == nil {
			t.Errorf("%s waits for a port", who)
		}
		cancel()
	}
}
