package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/doctor"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// examine runs doctor, and checks that the exit code is that of the worst finding.
func examine(t *testing.T, args ...string) doctor.Report {
	t.Helper()
	code, stdout, stderr := call(t.Context(), "", append([]string{"doctor", "-o", "json"}, args...)...)
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("doctor ended with %d: %v: %s%s", code, err, stdout, stderr)
	}
	want := map[doctor.Severity]int{doctor.OK: 0, doctor.Note: 0, doctor.Warning: 3, doctor.Error: 4}[r.Worst]
	if code != want {
		t.Errorf("doctor ended with %d, and the worst finding is %s", code, r.Worst)
	}
	return r
}

// codesOf returns the codes of a report's findings, from a severity on.
func codesOf(r doctor.Report, severities ...doctor.Severity) (codes []string) {
	for _, f := range r.Findings {
		if len(severities) == 0 || slices.Contains(severities, f.Severity) {
			codes = append(codes, string(f.Code))
		}
	}
	slices.Sort(codes)
	return codes
}

func TestDoctorFindsNothingWrongWithUp(t *testing.T) {
	fleetOfOne(t)
	stop := startUp(t)
	defer stop()
	removeHostMark(t)
	r := examine(t)
	bad := slices.DeleteFunc(codesOf(r, doctor.Warning, doctor.Error), func(code string) bool {
		return code == string(doctor.HostDisk) || code == string(doctor.HostFull) // depends on the machine
	})
	if len(bad) > 0 || r.Fleet.Class != doctor.Synced || r.Fleet.Hosts["ready"] != 1 || len(r.Fleet.Coordinators) != 1 {
		t.Errorf("%+v", r)
	}
	if r.You.Role != "operator" || r.You.Tenant != "default" ||
		!slices.Contains(r.You.May, "cordon, drain and forget hosts") {
		t.Errorf("%+v", r.You)
	}
	_, stdout, _ := call(t.Context(), "", "doctor")
	for _, line := range []string{"operator local-", "1 ready", "durability     synced: "} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is missing: %s", line, stdout)
		}
	}
	must(t, "auth", "add", "user", "anna", "--tenant", "blue", "--expires", "80h", "--file", inData("anna.creds"))
	r = examine(t, "--creds", inData("anna.creds"))
	if got := codesOf(r, doctor.Note); !slices.Contains(got, "access.hidden") || r.You.Role != "user" ||
		r.You.Tenant != "blue" || r.Fleet.Coordinators != nil || r.Fleet.Hosts["ready"] != 1 {
		t.Errorf("%+v", r)
	}
	for _, role := range []string{"coordinator", "worker"} {
		r = examine(t, "--creds", inData("credentials/"+role+".creds"))
		if got := codesOf(r); !slices.Equal(got, []string{"access.denied"}) {
			t.Errorf("with the credentials of a %s: %q", role, got)
		} else if !strings.Contains(r.Findings[0].Do, "may not ask") {
			t.Errorf("with the credentials of a %s, do: %s", role, r.Findings[0].Do)
		}
	}
	must(t, "auth", "revoke", "user", "anna", "--tenant", "blue")
	must(t, "auth", "push")
	if got := codesOf(examine(t, "--creds", inData("anna.creds"))); !slices.Equal(got, []string{"access.refused"}) {
		t.Errorf("with revoked credentials: %q", got)
	}
}

func TestDoctorSaysWhyNothingAnswers(t *testing.T) {
	clean(t)
	only := func(want string, args ...string) {
		t.Helper()
		r := examine(t, args...)
		if got := codesOf(r); !slices.Contains(got, want) || len(codesOf(r, doctor.Error)) != 1 || r.Fleet != nil {
			t.Errorf("want %s: %+v", want, r)
		}
	}
	only("nats.unreachable", "--nats", "nats://127.0.0.1:"+freePort(t))
	of := startNATSOfAnotherUser(t)
	only("access.refused", "--nats", of.ClientURL(), "--token", "wrong")
	only("coordinator.silent", "--nats", of.ClientURL(), "--token", anotherToken)
	for _, set := range []func(*server.Options){
		func(o *server.Options) { o.JetStream, o.MaxPayload = true, 128<<10 }, func(*server.Options) {},
	} {
		o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
		set(o)
		s, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server does not start")
		}
		only("nats.settings", "--nats", s.ClientURL())
	}
	if code, _, stderr := call(t.Context(), "", "doctor", "--creds", inData("none.creds")); code != exitUsage {
		t.Errorf("without the credentials file: %d, %s", code, stderr)
	}
}

func TestDoctorExaminesAFleetWithoutCredentials(t *testing.T) {
	clean(t)
	s := startWithoutHosts(t, 0)
	want := []string{"access.open", "host.none", "storage.sync"}
	eventually.Holds(t, patience, "the coordinator leads", func() bool {
		return !slices.Contains(codesOf(examine(t)), "coordinator.leaderless")
	})
	if got := codesOf(examine(t)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	expect(t, "storage set --table-max-bytes 4KiB", 0, "")
	for i := range 40 {
		expect(t, fmt.Sprintf("sandbox create --image i --wait=false --id sandbox-%d", i), 0, "")
		if i > 8 && slices.Contains(codesOf(examine(t)), "storage.filling") {
			break
		}
	}
	if got := codesOf(examine(t)); !slices.Contains(got, "storage.filling") {
		t.Errorf("a table is nearly full, and doctor finds %q", got)
	}
	if err := s.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	r := examine(t)
	if got := codesOf(r, doctor.Error); !slices.Contains(got, "storage.problem") || r.Fleet.Class != doctor.Nothing {
		t.Errorf("without JetStream: %+v", r)
	}
}

func TestDoctorSeesHowManyReplicasAClusterHas(t *testing.T) {
	clean(t)
	servers, err := embedded.StartCluster(t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		t.Cleanup(s.Stop)
	}
	t.Setenv("BOXFLEET_NATS", servers[0].ClientURL())
	startCoordinator(t)
	finds := func(code string, class doctor.Class) {
		t.Helper()
		var r doctor.Report
		defer func() {
			if t.Failed() {
				t.Logf("%+v", r)
			}
		}()
		eventually.Holds(t, patience, "doctor finds "+code, func() bool {
			r = examine(t)
			return r.Fleet != nil && slices.Contains(codesOf(r), code) && r.Fleet.Class == class
		})
	}
	finds("storage.unreplicated", doctor.Single)
	expect(t, "storage grow --replicas 3", 0, "")
	finds("coordinator.alone", doctor.Replicated)
	servers[2].Stop()
	finds("storage.problem", doctor.Replicated)
}

// A worker reports its host in the table of hosts and in heartbeats. Doctor reads both.
func TestDoctorExaminesWhatAHostReports(t *testing.T) {
	clean(t)
	conn := startForWorker(t)
	margin, skew := protocol.Duration(3*time.Second), protocol.Duration(time.Hour)
	host := &protocol.Host{Version: protocol.Version, Worker: "w1", HostID: "h1", Instance: "i1", Build: "9.9.9", Slots: 1,
		Healthy: true, Firewall: protocol.FirewallOff, LeaseTTL: protocol.Duration(30 * time.Second), SeenAt: time.Now(),
		CredentialsExpire: time.Now().Add(time.Hour), Posture: &protocol.Posture{Seccomp: "unconfined"}}
	if err := conn.RegisterHost(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	beat := &protocol.Heartbeat{Worker: "w1", HostID: "h1", Instance: "i1", Healthy: true, Skew: &skew,
		LeaseMargin: &margin, DiskFree: 1 << 30, DiskSize: 10 << 30, Full: "no memory"}
	stop := beating(t, conn, beat)
	eventually.Holds(t, patience, "the coordinator has read the table of hosts", func() bool {
		code, names, _ := call(t.Context(), "", "host", "list", "-q")
		return code == 0 && strings.TrimSpace(names) == "w1"
	})
	expect(t, "host cordon w1", 0, "")
	want := []string{"clock.host", "host.cordoned", "host.disk", "host.expires", "host.firewall_off", "host.full",
		"host.lease", "host.seccomp", "version.worker"}
	var got []string
	eventually.Holds(t, patience, "doctor finds what the host reports", func() bool {
		got = slices.DeleteFunc(codesOf(examine(t)), func(code string) bool { return !slices.Contains(want, code) })
		return slices.Equal(got, want)
	})
	stop()
	host.Build = "9.9.10"
	host.SeenAt = time.Now()
	if err := conn.RegisterHost(t.Context(), host); err != nil { // a worker registers every 15 s
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "the coordinator has read the registration", func() bool {
		return examine(t).Fleet.Workers["9.9.10"] == 1
	})
	if got := codesOf(examine(t)); !slices.Contains(got, "host.lease") || !slices.Contains(got, "host.disk") {
		t.Errorf("after the worker registered again: %q", got)
	}
}

// answering starts a NATS server, and answers the given reads as a coordinator does.
func answering(t *testing.T, reads map[string]jetstream.Endpoint) {
	t.Helper()
	server := startNATS(t, 0)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "c1", User: "@c1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	serving, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- conn.ServeReads(ctx, "1.0.0", reads, func() { close(serving) }) }()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case <-serving:
	case err := <-ended:
		t.Fatal(err)
	}
}

func says(r *protocol.Reply) jetstream.Endpoint {
	return func(context.Context, string, *protocol.Query) (*protocol.Reply, error) { return r, nil }
}

func hangs(ctx context.Context, _ string, _ *protocol.Query) (*protocol.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A question without an answer is a finding, and the report has the answers to the others. Only a question that no
// coordinator receives means that the coordinators are too old.
func TestDoctorReportsWhatItLearnedWithinItsDeadline(t *testing.T) {
	clean(t)
	ping := says(&protocol.Reply{Ping: &protocol.Ping{Version: "1.0.0", Coordinator: "c1", Time: time.Now()}})
	hosts := says(&protocol.Reply{Hosts: []*protocol.Host{{Worker: "w1", State: protocol.HostReady, Build: "1.0.0"}}})
	for want, reads := range map[string]map[string]jetstream.Endpoint{
		"coordinator.silent": {"ping": hangs, "hosts": hosts, "checkup": hangs},
		"coordinator.mute":   {"ping": ping, "hosts": hosts, "checkup": hangs},
		"version.old":        {"ping": ping, "hosts": hosts},
	} {
		answering(t, reads)
		began := time.Now()
		r := examine(t, "--deadline", "2s")
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s: doctor took %s", want, took)
		}
		got := codesOf(r)
		if !slices.Contains(got, want) || want != "version.old" && r.Worst != doctor.Error {
			t.Errorf("want %s, got %q", want, got)
		}
		if want != "coordinator.silent" && (r.Fleet == nil || r.Fleet.Hosts["ready"] != 1) {
			t.Errorf("%s: the hosts are missing: %+v", want, r.Fleet)
		}
	}
}

func TestDoctorsTextIsShortForALargeFleet(t *testing.T) {
	clean(t)
	var hosts []*protocol.Host
	for i := range 1000 {
		hosts = append(hosts, &protocol.Host{Worker: fmt.Sprintf("w%d", i), State: protocol.HostReady, Firewall: "nftables",
			Build: fmt.Sprintf("1.0.%d", i), Engine: "28.5.2", Posture: &protocol.Posture{Warnings: []string{"\x1b[2Jold"}}})
	}
	ping := &protocol.Ping{Version: "1.0.0", Coordinator: "c1", Time: time.Now()}
	answering(t, map[string]jetstream.Endpoint{"ping": says(&protocol.Reply{Ping: ping}),
		"hosts":   says(&protocol.Reply{Hosts: hosts}),
		"checkup": says(&protocol.Reply{Checkup: &protocol.Checkup{Server: "2.12.1"}}),
	})
	code, text, _ := call(t.Context(), "", "doctor")
	if len(text) > 10<<10 || code != 3 || strings.Contains(text, "\x1b") ||
		!strings.Contains(text, "version.worker: 989 more like these") || !strings.Contains(text, "1000 28.5.2") {
		t.Errorf("doctor ended with %d and printed %d bytes: %.5000s", code, len(text), text)
	}
	if r := examine(t); len(r.Findings) < 1999 {
		t.Errorf("JSON has %d findings", len(r.Findings))
	}
}

// beating sends a heartbeat every 100 ms until stop is called.
func beating(t *testing.T, conn *jetstream.Conn, beat *protocol.Heartbeat) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := conn.Beat(beat); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
