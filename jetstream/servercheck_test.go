package jetstream_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// plainServer runs a NATS server and returns the URL of the server. Before the start, the function set can change the
// server's settings, as an operator can.
func plainServer(t *testing.T, set func(*server.Options)) string {
	t.Helper()
	return startPlain(t, set).ClientURL()
}

func startPlain(t *testing.T, set func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{
		Host:      "127.0.0.1",
		Port:      server.RANDOM_PORT,
		JetStream: true,
		StoreDir:  t.TempDir(),
		NoLog:     true,
		NoSigs:    true,
	}
	set(o)
	s, err := server.NewServer(o)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready after 10 s")
	}
	return s
}

func TestUnsuitableServerSettingsAreReportedInOneSentence(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set  func(*server.Options)
		says string
	}{
		"max_payload":    {func(o *server.Options) { o.MaxPayload = 128 << 10 }, "set max_payload: 1MB"},
		"no JetStream":   {func(o *server.Options) { o.JetStream = false }, "jetstream { store_dir, max_file_store }"},
		"small store":    {func(o *server.Options) { o.JetStreamMaxStore = 64 << 20 }, "max_file_store"},
		"no store":       {func(o *server.Options) { o.JetStreamMaxStore = 1 << 10 }, "max_file_store"},
		"not in account": {withoutJetStream, "JetStream is not enabled for this account"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := plainServer(t, test.set)
			began := time.Now()
			c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: url, Logger: quiet})
			if err == nil {
				t.Cleanup(c.Close)
				err = c.Provision(t.Context(), jetstream.Assets{})
			}
			wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerSettings)
			if !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is not one sentence with %q: %v", test.says, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the error came only after %s", took)
			}
			t.Log(err)
		})
	}
}

// A server of a cluster says that an account has no JetStream until it has set the account up.
func TestJetStreamMayBeEnabledForTheAccountDuringProvisioning(t *testing.T) {
	t.Parallel()
	s := startPlain(t, withoutJetStream)
	var log eventually.Buffer
	c, err := jetstream.Connect(t.Context(),
		jetstream.Config{URL: s.ClientURL(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	t.Cleanup(c.Close)
	ended := make(chan error, 1)
	go func() { ended <- c.Provision(t.Context(), jetstream.Assets{}) }()
	eventually.Holds(t, 10*time.Second, "a coordinator waits for JetStream", func() bool {
		return len(ended) > 0 || strings.Contains(log.String(), "waiting for NATS to enable JetStream for the account")
	})
	enableJetStream(t, s)
	must(t, <-ended)
}

// A client connects to a server of a cluster that has no JetStream itself. The test answers in place of the server that
// leads JetStream, which gives its first answer only for some milliseconds.
func TestJetStreamMayBeEnabledForTheAccountDuringAConnect(t *testing.T) {
	t.Parallel()
	at := plainServer(t, func(o *server.Options) { o.JetStream = false })
	nc, err := nats.Connect(at)
	must(t, err)
	t.Cleanup(nc.Close)
	var asked atomic.Int32
	_, err = nc.Subscribe("$JS.API.INFO", func(m *nats.Msg) {
		answer := `{"error":{"code":503,"err_code":10039,"description":"jetstream not enabled for account"}}`
		if asked.Add(1) > 2 {
			answer = `{"memory":0}`
		}
		_ = m.Respond([]byte(answer)) // without an answer the client asks again
	})
	must(t, err)
	must(t, nc.Flush())
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: at, Logger: quiet})
	must(t, err)
	c.Close()
	if n := asked.Load(); n != 3 {
		t.Errorf("the client asked %d times", n)
	}
}

// A running process must not end while a restarted server has not set up the account yet.
func TestAnAccountWithoutJetStreamMayGetItLater(t *testing.T) {
	t.Parallel()
	s := startPlain(t, withoutJetStream)
	c, err := jetstream.Connect(t.Context(),
		jetstream.Config{URL: s.ClientURL(), Logger: quiet, Timeout: 100 * time.Millisecond})
	must(t, err)
	t.Cleanup(c.Close)
	wantError(t, c.Open(t.Context()), protocol.Unavailable, protocol.ReasonServerSettings)
	enableJetStream(t, s)
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	must(t, c.Open(t.Context()))
}

func enableJetStream(t *testing.T, s *server.Server) {
	t.Helper()
	account, err := s.LookupAccount("A")
	must(t, err)
	must(t, account.EnableJetStream(nil, nil))
}

func withoutJetStream(o *server.Options) {
	a := server.NewAccount("A")
	o.Accounts = []*server.Account{a}
	o.Users = []*server.User{{Username: "u", Password: "p", Account: a}}
	o.NoAuthUser = "u"
}

func TestASmallStoreGetsSmallerStreams(t *testing.T) {
	t.Parallel()
	url := plainServer(t, func(o *server.Options) { o.JetStreamMaxStore = 16 << 30 })
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: url, Logger: quiet})
	must(t, err)
	t.Cleanup(c.Close)
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	_, err = c.LogRoom(t.Context())
	must(t, err)
	err = c.Provision(t.Context(), jetstream.Assets{EventMaxBytes: 1 << 40})
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerSettings)
}
