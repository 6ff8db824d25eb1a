package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestPingListsTheStreamsAndFailsWithoutJetStream(t *testing.T) {
	clean(t)
	s := startWithoutHosts(t, 0)
	code, stdout, stderr := call(t.Context(), "", "ping", "-o", "json")
	var ping protocol.Ping
	if err := json.Unmarshal([]byte(stdout), &ping); err != nil || code != 0 {
		t.Fatalf("%d: %v: %s%s", code, err, stdout, stderr)
	}
	found := false
	for _, stream := range ping.Storage.Streams {
		found = found || stream.Name == protocol.StreamEvents && stream.Replicas == 1 && stream.InSync == 1 &&
			stream.MaxBytes > 0
	}
	if !found || len(ping.Storage.Problems) > 0 {
		t.Fatalf("%s", stdout)
	}
	if err := s.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = call(t.Context(), "", "ping")
	if code != 1 || !strings.Contains(stderr, "JetStream") || !strings.Contains(stdout, "none now") {
		t.Fatalf("ping with JetStream disabled: exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestStorageSetLowersALimitThatACoordinatorRefusesToLower(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	t.Setenv("BOXFLEET_COORDINATOR_LOG_MAX_AGE", "3h")
	code, _, stderr := call(t.Context(), "", "coordinator")
	if code != 1 || !strings.Contains(stderr, "log_max_age") || !strings.Contains(stderr,
		"boxfleet storage set --log-max-age 3h") {
		t.Fatalf("a second coordinator ended with %d: %s", code, stderr)
	}
	if code, _, stderr = call(t.Context(), "", "storage", "set", "--log-max-age", "3h"); code != 0 {
		t.Fatalf("%d: %s", code, stderr)
	}
	t.Setenv("BOXFLEET_COORDINATOR_LOG_MAX_AGE", "")
	if code, _, stderr = call(t.Context(), "", "storage", "set"); code != exitUsage ||
		!strings.Contains(stderr, "nothing to change") {
		t.Fatalf("storage set without flags: exit code %d: %s", code, stderr)
	}
	if code, _, stderr = call(t.Context(), "", "storage", "grow", "--replicas", "3"); code != 1 ||
		!strings.Contains(stderr, "NATS cluster of 3 servers") {
		t.Fatalf("storage grow with one server: exit code %d: %s", code, stderr)
	}
}

func TestEveryRoleAndClientNamesTheMissingServerSetting(t *testing.T) {
	clean(t)
	t.Setenv("BOXFLEET_WORKER_SUPERVISOR", "/bin/true") // no worker in this test starts a supervisor
	for name, test := range map[string]struct {
		set  func(*server.Options)
		says string
	}{
		"max_payload": {func(o *server.Options) { o.JetStream, o.MaxPayload = true, 128<<10 }, "max_payload: 1MB"},
		"JetStream":   {func(*server.Options) {}, "jetstream { store_dir, max_file_store }"},
	} {
		o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
		test.set(o)
		s, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server does not start")
		}
		t.Setenv("BOXFLEET_NATS", s.ClientURL())
		for _, args := range [][]string{{"coordinator"}, {"worker"}, {"ping"}, {"sandbox", "create", "--image", "x"},
			{"sandbox", "list"}} {
			began := time.Now()
			ctx, end := t.Context(), func() {}
			if role := len(args) == 1 && args[0] != "ping"; role && name == "JetStream" { // a role waits, and logs why
				ctx, end = context.WithTimeout(ctx, time.Second)
			}
			code, _, stderr := call(ctx, "", args...)
			end()
			if ctx.Err() != nil {
				code = 1
			}
			if code != 1 || !strings.Contains(stderr, test.says) || time.Since(began) > 5*time.Second {
				t.Errorf("%s: %v ended with %d after %s: %s", name, args, code, time.Since(began), stderr)
			}
		}
	}
}

func TestAPingThatWaitsPrintsTheFirstAnswerWithoutProblems(t *testing.T) {
	clean(t)
	var asked atomic.Int32
	says := func(context.Context, string, *protocol.Query) (*protocol.Reply, error) {
		ping := &protocol.Ping{Coordinator: "c1", Time: time.Now(), Storage: &protocol.Storage{}}
		if asked.Add(1) <= 2 {
			ping.Storage.Problems = []string{"2 of 3 replicas are in sync"}
		}
		return &protocol.Reply{Ping: ping}, nil
	}
	answering(t, map[string]jetstream.Endpoint{"ping": says})
	if code, stdout, stderr := call(t.Context(), "", "ping"); code != exitFailure ||
		!strings.Contains(stderr, "2 of 3 replicas") || !strings.Contains(stdout, "answered by") {
		t.Errorf("a ping with a problem: exit code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := call(t.Context(), "", "ping", "--wait", "1m")
	if code != 0 || strings.Count(stdout, "answered by") != 1 || stderr != "" || asked.Load() != 3 {
		t.Errorf("a ping that waits, after %d questions: exit code %d: %s%s", asked.Load(), code, stdout, stderr)
	}
}
