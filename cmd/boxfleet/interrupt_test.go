package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// signalled is the time limit for a client to end after a signal: 2 s, plus some time for a busy machine.
const signalled = 2*time.Second + 500*time.Millisecond

// stateOfExec returns the state of an exec of the sandbox web.
func stateOfExec(t *testing.T, id string) protocol.ExecState {
	t.Helper()
	_, stdout, stderr := call(t.Context(), "", "execs", "get", "web", id, "-o", "json")
	var x protocol.Exec
	if err := json.Unmarshal([]byte(stdout), &x); err != nil {
		t.Fatalf("%v: %s %s", err, stdout, stderr)
	}
	return x.State
}

func becomesCancelled(t *testing.T, id string) {
	t.Helper()
	eventually.Holds(t, patience, "exec "+id+" is cancelled", func() bool {
		return stateOfExec(t, id) == protocol.ExecStateCancelled
	})
}

func TestWhatEndsAClient(t *testing.T) {
	fleetOfOne(t)
	stop := startUp(t)
	removeHostMark(t)
	expectOf(t, []string{"sandbox", "create", "--image", image, "--id", "web", "--memory", "64m"}, 0, "web\n")

	t.Run("clients", func(t *testing.T) {
		for name, test := range map[string]func(t *testing.T){
			"a signal cancels the exec":                 signalCancelsExec,
			"a client leaves a slow exec to its cancel": slowExecIsLeftToItsCancel,
			"the second Ctrl-C ends the client at once": secondInterruptEndsClient,
			"an ignored HUP stays ignored":              ignoredHangupStaysIgnored,
			"the deadline ends only the wait":           deadlineEndsOnlyTheWait,
			"a closed output cancels the exec":          closedOutputCancelsExec,
			"a closed output ends any client":           closedOutputEndsAnyClient,
			"a signal ends a client that follows":       interruptEndsFollowing,
			"an interrupted create continues":           interruptedCreateContinues,
			"an interrupted run deletes its sandbox":    interruptedRunDeletesItsSandbox,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	for _, id := range []string{"web", "talker", "waits"} {
		expect(t, "sandbox delete "+id, 0, id)
	}
	if code := stop(); code != 0 {
		t.Errorf("up ended with %d", code)
	}
}

func signalCancelsExec(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		for attempt := 1; !signalledExecEndsInTime(t, s, fmt.Sprintf("quick-%d-%d", s, attempt)); attempt++ {
			if attempt == 5 {
				t.Fatalf("%v: the disk was too slow for a cancel in %d attempts", s, attempt)
			}
		}
	}
}

// signalledExecEndsInTime signals a client, checks how the client ends, and reports whether the exec was stored as
// cancelled in time. On a slow disk, the cancel may be stored too late: the client has to leave before it can learn how
// the exec ended.
func signalledExecEndsInTime(t *testing.T, s syscall.Signal, id string) bool {
	c := startClient(t, "exec", "web", "--id", id, "--", "sh", "-c",
		"trap 'exit 7' TERM; echo begun; while :; do sleep 0.05; done")
	c.prints("begun")
	sent := time.Now()
	c.signal(s)
	inTime := false
	for left := false; !left; {
		select {
		case <-c.ended:
			left = true
		case <-time.After(10 * time.Millisecond):
		}
		early := time.Since(sent) < leaveWithin-200*time.Millisecond
		inTime = inTime || stateOfExec(t, id) == protocol.ExecStateCancelled && early
		if time.Since(sent) > signalled && !left {
			t.Fatalf("%v: the client did not end within %v: %s", s, signalled, c.stderr.String())
		}
	}
	becomesCancelled(t, id)
	if code := c.cmd.ProcessState.ExitCode(); code != 7 && (inTime || code != 128+int(s)) {
		t.Errorf("%v: the client ended with %d: %s; the exec was cancelled in time: %v", s, code, c.stderr.String(), inTime)
	}
	return inTime
}

func slowExecIsLeftToItsCancel(t *testing.T) {
	slow := map[syscall.Signal]*process{}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		slow[s] = startClient(t, "exec", "web", "--id", fmt.Sprintf("slow-%d", s), "--grace", "3s", "--", "sh", "-c",
			"trap '' TERM; echo begun; sleep 1000")
		slow[s].prints("begun")
	}
	for s, c := range slow {
		c.signal(s)
	}
	for s, c := range slow {
		if code := c.ends(signalled); code != 128+int(s) {
			t.Errorf("%v: the client ended with %d", s, code)
		}
		id := fmt.Sprintf("slow-%d", s)
		c.says("exec " + id + " of sandbox web is being cancelled")
		becomesCancelled(t, id)
	}
}

func secondInterruptEndsClient(t *testing.T) {
	c := startClient(t, "exec", "web", "--id", "twice", "--grace", "2s", "--", "sh", "-c",
		"trap '' TERM; echo begun; sleep 1000")
	c.prints("begun")
	c.signal(syscall.SIGINT)
	eventually.Holds(t, patience, "the cancel is accepted", func() bool {
		_, stdout, _ := call(t.Context(), "", "execs", "get", "web", "twice", "-o", "json")
		return strings.Contains(stdout, `"cancelling":true`)
	})
	select {
	case <-c.ended:
		t.Error("the first Ctrl-C ended the client at once")
	default:
	}
	c.signal(syscall.SIGINT)
	if code := c.ends(time.Second); code != 130 {
		t.Errorf("the client ended with %d", code)
	}
	c.says("exec twice of sandbox web")
	becomesCancelled(t, "twice")
}

func ignoredHangupStaysIgnored(t *testing.T) {
	sh := exec.Command("sh", "-c",
		`trap '' HUP; exec "$0" -test.run='^TestAsProgram$' -- exec web --id nohup -- sh -c '`+
			`echo begun; while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 6'`, os.Args[0])
	sh.Env = append(os.Environ(), asProgram+"=1")
	out, err := sh.StdoutPipe()
	if err == nil {
		err = sh.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "begun\n" {
		t.Errorf("the client printed %q", line)
	}
	if err := sh.Process.Signal(syscall.SIGHUP); err != nil {
		t.Error(err)
	}
	expect(t, "exec web -- touch /tmp/go", 0, "")
	if err := sh.Wait(); sh.ProcessState.ExitCode() != 6 {
		t.Errorf("a client with HUP ignored, after HUP: %v", err)
	}
}

func deadlineEndsOnlyTheWait(t *testing.T) {
	c := startClient(t, "--deadline", "1s", "exec", "web", "--id", "late", "--", "sh", "-c",
		"echo begun; while [ ! -e /tmp/late ]; do sleep 0.05; done; echo end")
	c.prints("begun")
	if code := c.ends(5 * time.Second); code != exitNotRun {
		t.Errorf("the client ended with %d", code)
	}
	c.says("deadline_exceeded", "boxfleet execs logs web late --follow")
	if state := stateOfExec(t, "late"); state != protocol.ExecStateRunning {
		t.Errorf("the exec is %s", state)
	}
	expect(t, "exec web -- touch /tmp/late", 0, "")
	expect(t, "execs logs web late --follow", 0, "begun\nend\n")
}

func closedOutputCancelsExec(t *testing.T) {
	c := startClient(t, "exec", "web", "--id", "yes", "--", "yes")
	c.prints("y")
	c.pipe.Close()
	if code := c.ends(5 * time.Second); code != 141 {
		t.Errorf("the client ended with %d: %s", code, c.stderr.String())
	}
	becomesCancelled(t, "yes")
	c = startClient(t, "exec", "web", "--id", "deaf", "--grace", "3s", "--", "sh", "-c",
		"trap '' TERM; while :; do echo y; sleep 0.01; done")
	c.prints("y")
	c.pipe.Close()
	if code := c.ends(5 * time.Second); code != 141 {
		t.Errorf("the client ended with %d: %s", code, c.stderr.String())
	}
	c.says("exec deaf of sandbox web is being cancelled")
	becomesCancelled(t, "deaf")
}

func closedOutputEndsAnyClient(t *testing.T) {
	for _, args := range [][]string{{"spec", "example"}, {"sandbox", "list"}, {"sandbox", "events", "web"},
		{"exec", "web", "-o", "json", "--", "true"}} {
		c := startClient(t, args...)
		c.pipe.Close()
		if code := c.ends(5 * time.Second); code != 141 {
			t.Errorf("%q ended with %d: %s", args, code, c.stderr.String())
		}
	}
}

func interruptEndsFollowing(t *testing.T) {
	c := startClient(t, "sandbox", "create", "--image", image, "--id", "talker", "--memory", "64m", "--", "sh", "-c",
		"while :; do echo talk; sleep 0.1; done")
	if code := c.ends(20 * time.Second); code != 0 {
		t.Fatalf("create: %d, %s", code, c.stderr.String())
	}
	for _, args := range [][]string{{"logs", "talker", "--follow"}, {"sandbox", "events", "talker", "--follow"}} {
		for s, want := range map[syscall.Signal]int{syscall.SIGINT: 0, syscall.SIGTERM: 0, syscall.SIGHUP: 0} {
			c := startClient(t, args...)
			if _, err := c.stdout.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			c.signal(s)
			if code := c.ends(signalled); code != want {
				t.Errorf("%q, %v: %d, %s", args, s, code, c.stderr.String())
			}
		}
	}
	interruptEndsStats(t)
	c = startClient(t, "logs", "talker", "--follow")
	c.prints("talk")
	c.pipe.Close()
	if code := c.ends(5 * time.Second); code != 141 {
		t.Errorf("after its output was closed: exit code %d, %s", code, c.stderr.String())
	}
	expect(t, "sandbox get talker", 0, "running since")
	expect(t, "logs talker --tail 2 --since 1h", 0, "talk\ntalk\n")
	if _, stdout, stderr := call(t.Context(), "", "logs", "talker", "--since", "2999-01-01"); stdout != "" ||
		stderr != "" {
		t.Errorf("logs since a time in the future: stdout %q, stderr %s", stdout, stderr)
	}
	expect(t, "sandbox events talker", 0, "primary.started")
}

// interruptEndsStats reads what the sandbox uses, again and again.
func interruptEndsStats(t *testing.T) {
	t.Helper()
	c := startClient(t, "sandbox", "stats", "talker", "--follow", "--interval", "200ms", "-o", "json")
	before := protocol.Duration(0)
	for range 3 {
		line, err := c.stdout.ReadString('\n')
		var shown shownStats
		if err == nil {
			err = json.Unmarshal([]byte(line), &shown)
		}
		if err != nil || len(shown.Containers) != 1 || shown.Containers[0].CPUPercent == nil ||
			shown.Containers[0].At <= before {
			t.Fatalf("stats printed %q: %v, %s", line, err, c.stderr.String())
		}
		before = shown.Containers[0].At
	}
	c.signal(syscall.SIGINT)
	if code := c.ends(signalled); code != 0 {
		t.Errorf("stats ended with %d, %s", code, c.stderr.String())
	}
	c = startClient(t, "sandbox", "stats", "talker", "--follow", "--interval", "200ms")
	for tables := 0; tables < 2; {
		line, err := c.stdout.ReadString('\n')
		if err != nil {
			t.Fatalf("%v, %s", err, c.stderr.String())
		}
		if strings.HasPrefix(line, "CONTAINER") {
			tables++
		}
	}
	c.signal(syscall.SIGTERM)
	if code := c.ends(signalled); code != 0 {
		t.Errorf("stats ended with %d, %s", code, c.stderr.String())
	}
}

func interruptedCreateContinues(t *testing.T) {
	c := startClient(t, "sandbox", "create", "--image", "boxfleet/not-here:1", "--pull", "never", "--id", "waits")
	eventually.Holds(t, patience, "the create is accepted", func() bool {
		code, _, _ := call(t.Context(), "", "sandbox", "get",
			"waits")
		return code == 0
	})
	c.signal(syscall.SIGINT)
	if code := c.ends(signalled); code != 130 {
		t.Errorf("the client ended with %d", code)
	}
	// This client may be interrupted before it has an answer, although the sandbox already exists. Its message then also
	// says how to delete the sandbox.
	c.says("cancelled: interrupted; ", "boxfleet sandbox delete waits")
}

func interruptedRunDeletesItsSandbox(t *testing.T) {
	line := []string{"run", "--image", image, "--memory", "64m", "--label", "team=run", "--grace", "3s", "--", "sh", "-c",
		"trap '' TERM; while :; do echo y; sleep 0.05; done"}
	signals := []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
	clients := map[syscall.Signal]*process{}
	for _, s := range signals {
		clients[s] = startClient(t, line...)
	}
	late := startClient(t, append([]string{"--deadline", "4s"}, line...)...)
	for s, c := range clients {
		c.prints("y")
		if s == syscall.SIGPIPE {
			c.pipe.Close()
		} else {
			c.signal(s)
		}
	}
	for s, c := range clients {
		if code := c.ends(signalled + 3*time.Second); code != 128+int(s) {
			t.Errorf("%v: the client ended with %d: %s", s, code, c.stderr.String())
		}
		if s != syscall.SIGPIPE {
			c.says("is being deleted")
		}
	}
	if code := late.ends(30 * time.Second); code != exitNotRun {
		t.Errorf("after its deadline: exit code %d: %s", code, late.stderr.String())
	}
	late.says("deadline_exceeded")
	waits := startClient(t, "run", "--image", "boxfleet/not-here:1", "--pull", "never", "--label", "team=run", "--",
		"true")
	eventually.Holds(t, patience, "the sandbox of run waits for its image", func() bool {
		_, stdout, _ := call(t.Context(), "", "sandbox", "list", "--label", "team=run", "-o", "json")
		return strings.Contains(stdout, "not-here")
	})
	waits.signal(syscall.SIGINT)
	if code := waits.ends(10 * time.Second); code != 130 {
		t.Errorf("Ctrl-C while run creates its sandbox: exit code %d: %s", code, waits.stderr.String())
	}
	eventually.Holds(t, patience, "the sandboxes of all runs are deleted", func() bool {
		_, stdout, _ := call(t.Context(), "", "sandbox", "list", "--label", "team=run", "-o", "json")
		return stdout == "[]\n"
	})
}

// TestTERMEndsAnyClientWithin2s tests everything that a client may wait for: servers that accept a connection and never
// answer, servers that have ended, a missing coordinator, and stdin.
func TestTERMEndsAnyClientWithin2s(t *testing.T) {
	clean(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	taken := make(chan struct{}, 64)
	go func() {
		for {
			c, err := hole.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			defer c.Close()
			taken <- struct{}{}
		}
	}()
	commands := [][]string{{"ping"}, {"ping", "--wait", "1m"}, {"sandbox", "list"}, {"sandbox", "create", "--image", "x"},
		{"sandbox", "delete", "web"},
		{"logs", "web", "--follow"}, {"sandbox", "events", "web", "--follow"}, {"exec", "web", "--", "ls"},
		{"run", "--image", "x", "--", "ls"}}
	end := func(what string, clients []*process) {
		for _, c := range clients {
			eventually.Holds(t, patience, "the client handles signals or has ended", func() bool {
				return ignores(c.cmd.Process.Pid, syscall.SIGPIPE) || c.hasEnded()
			})
			c.signal(syscall.SIGTERM)
		}
		for _, c := range clients {
			if code := c.ends(signalled); code < 0 {
				t.Errorf("%s: a signal killed %q, which should have ended by itself", what, c.cmd.Args[3:])
			}
		}
	}
	start := func(nats string) (clients []*process) {
		for _, args := range commands {
			clients = append(clients, startClient(t, append([]string{"--nats", nats}, args...)...))
		}
		return clients
	}
	clients := start("nats://" + hole.Addr().String())
	for range clients {
		<-taken
	}
	end("a server that never answers", clients)

	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "boxfleet", SyncLazily: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	link := startRelay(t, strings.TrimPrefix(server.ClientURL(), "nats://"))
	clients = start("nats://" + link.listener.Addr().String())
	link.await(len(clients))
	link.deaf.Store(true)
	end("a connection that has become silent", clients[2:]) // the two pings may have ended: no coordinator runs
	link.deaf.Store(false)
	clients = start("nats://" + link.listener.Addr().String())
	link.await(len(clients))
	server.Stop()
	end("servers that have ended", clients[2:])

	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	pinging := startClient(t, "--nats", "nats://"+closing.Addr().String(), "ping", "--wait", "1m")
	for range 2 { // the second connection is a retry
		c, err := closing.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	closing.Close()
	pinging.signal(syscall.SIGTERM)
	if code := pinging.ends(signalled); code != 128+int(syscall.SIGTERM) {
		t.Errorf("a ping that waits ended with %d", code)
	}

	reading := startClient(t, "exec", "web", "-i", "--", "cat")
	end("stdin that does not end", []*process{reading})
}

// ignores reports whether a process ignores a signal.
func ignores(pid int, s syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, mask, _ := strings.Cut(string(status), "SigIgn:")
	number, _ := strconv.ParseUint(strings.TrimSpace(strings.SplitN(mask, "\n", 2)[0]), 16, 64)
	return number>>(s-1)&1 == 1
}

// relay forwards connections to a server, and reports when a client has sent something.
type relay struct {
	listener net.Listener
	spoken   chan struct{} // one value for each client that has sent something
	deaf     atomic.Bool   // if true, the relay forwards nothing
	t        *testing.T
}

func startRelay(t *testing.T, server string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, spoken: make(chan struct{}, 64), t: t}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			carrying.Go(func() { r.carry(up, client, r.spoken) })
			carrying.Go(func() { r.carry(client, up, nil) })
		}
	})
	t.Cleanup(func() { listener.Close(); carrying.Wait() })
	return r
}

// carry copies data until one side is closed. It reports the first data on spoken, unless spoken is nil.
func (r *relay) carry(to, from net.Conn, spoken chan<- struct{}) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if spoken != nil {
			spoken <- struct{}{}
			spoken = nil
		}
		if r.deaf.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// await waits until n clients have sent something.
func (r *relay) await(n int) {
	r.t.Helper()
	for range n {
		select {
		case <-r.spoken:
		case <-time.After(20 * time.Second):
			r.t.Fatal("no client sent anything within 20 s")
		}
	}
}

func TestTheEndOfAWaitSaysWhyTheFleetDidNotDecide(t *testing.T) {
	full := protocol.Errorf(protocol.Cancelled, protocol.ReasonLogFull, "the request is stored and waits: the log is full")
	e := protocol.AsError(because(full, protocol.DeadlineExceeded, "not ended"))
	if e.Code != protocol.DeadlineExceeded || e.Reason != protocol.ReasonLogFull ||
		!strings.Contains(e.Message, "not ended: the request is stored") {
		t.Errorf("got %v", e)
	}
	e = protocol.AsError(because(protocol.Errorf(protocol.Cancelled, "", "context canceled"), protocol.Cancelled,
		"terminated"))
	if e.Code != protocol.Cancelled || e.Message != "terminated" {
		t.Errorf("got %v", e)
	}
}
