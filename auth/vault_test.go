package auth_test

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/tap"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/seal"
)

// vault is a deployment with credentials and a coordinator that keeps secrets. Workers w1 and w2 have the hosts HOSTA
// and HOSTB. decider writes histories as another coordinator does, so that a test chooses the hosts of sandboxes.
type vault struct {
	t         *testing.T
	authority *auth.Authority
	server    *testServer
	key       *seal.Key // of the fleet
	end       func()    // ends the coordinator
	log       *eventually.Buffer
	decider   *roleConn
	w1, w2    *roleConn
	anna      *roleConn // user of tenant blue
	blue      *jetstream.TenantReads
	wire      *eventually.Buffer // every byte that the server got or sent
	url       string
}

func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{t: t, log: &eventually.Buffer{}, wire: &eventually.Buffer{}}
	v.authority, v.server = newAuthority(t)
	v.url = "nats://" + tap.Start(t, v.server.Addr().String(), v.wire)
	var err error
	if v.key, err = seal.New(); err != nil {
		t.Fatal(err)
	}
	v.end = v.coordinator("c1", seal.Keys{v.key})
	v.decider = v.writer(rights.Coordinator, protocol.OwnerCoordinator, "d1", "")
	v.w1 = v.writer(rights.Worker, protocol.OwnerWorker, "w1", "HOSTA")
	v.w2 = v.writer(rights.Worker, protocol.OwnerWorker, "w2", "HOSTB")
	v.anna = v.open(someone(rights.User, "anna", "blue", ""))
	v.blue = v.anna.TenantReads("blue")
	return v
}

func (v *vault) open(id rights.Identity) *roleConn {
	v.t.Helper()
	return open(v.t, v.authority, cmp.Or(v.url, v.server.ClientURL()), id)
}

// coordinator runs a coordinator with keys for secrets.
func (v *vault) coordinator(name string, keys seal.Keys) (end func()) {
	v.t.Helper()
	log := slog.New(slog.NewTextHandler(v.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return runCoordinatorWith(v.t, v.open(someone(rights.Coordinator, name, "", "")),
		coordinator.Config{Name: name, SecretsKeys: keys, Logger: log})
}

func (v *vault) writer(role rights.Role, owner protocol.Owner, name, host string) *roleConn {
	v.t.Helper()
	c := v.open(someone(role, name, "", host))
	if err := c.Open(v.t.Context()); err != nil {
		v.t.Fatal(err)
	}
	if err := c.RegisterWriter(v.t.Context(), owner, name, host); err != nil {
		v.t.Fatal(err)
	}
	return c
}

// set sets a secret of tenant blue.
func (v *vault) set(name, value string) uint64 {
	v.t.Helper()
	info, err := v.blue.SetSecret(v.t.Context(), name, v.sealed(seal.Secret("blue", name), value))
	if err != nil {
		v.t.Fatal(err)
	}
	return info.Versions[0].Version
}

func (v *vault) sealed(purpose seal.Purpose, value string) []byte {
	v.t.Helper()
	key, err := v.blue.FleetKey(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	data, err := seal.To(key, purpose, []byte(value))
	if err != nil {
		v.t.Fatal(err)
	}
	return data
}

// append appends events of a coordinator to the history of a sandbox of tenant blue.
func (v *vault) append(sandbox string, events ...protocol.Event) {
	v.t.Helper()
	v.appendAs(v.decider, "d1", sandbox, events...)
}

// ready makes a sandbox on HOSTA ready.
func (v *vault) ready(sandbox string) {
	v.t.Helper()
	v.appendAs(v.w1, "w1", sandbox, protocol.Event{Kind: protocol.SandboxReady,
		Details: &protocol.SandboxDetails{Boot: "b"}})
}

func (v *vault) appendAs(c *roleConn, writer, sandbox string, events ...protocol.Event) {
	v.t.Helper()
	j := c.Journal(jetstream.JournalConfig{Tenant: "blue", Sandbox: sandbox, Writer: writer, KeepEnded: 10})
	_, err := j.Do(v.t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) { return events, nil })
	if err != nil {
		v.t.Fatal(err)
	}
}

// assigned makes a sandbox of tenant blue on HOSTA.
func (v *vault) assigned(sandbox string, spec protocol.SandboxSpec) {
	v.t.Helper()
	spec.Image = "i"
	v.append(sandbox,
		protocol.Event{Kind: protocol.SandboxAccepted, Request: "r-" + sandbox,
			Details: &protocol.SandboxDetails{Spec: &spec}},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w1", HostID: "HOSTA", Generation: 1}})
}

func (v *vault) unseal(c *roleConn, q protocol.UnsealQuery) (*protocol.UnsealedValue, error) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 20*time.Second)
	defer cancel()
	q.Tenant = "blue"
	return c.Unseal(ctx, q)
}

func (v *vault) wantValue(c *roleConn, q protocol.UnsealQuery, want string, version uint64) {
	v.t.Helper()
	got, err := v.unseal(c, q)
	if err != nil || string(got.Value) != want || got.Version != version {
		v.t.Errorf("%s: the worker got version %d with %d bytes: %v", q.Field, version, len(want), err)
	}
}

func wantCode(t *testing.T, what string, err error, code protocol.Code, reason string) {
	t.Helper()
	if e := protocol.AsError(err); e == nil || e.Code != code || e.Reason != reason {
		t.Errorf("%s: want %s (%s), got %v", what, code, reason, err)
	}
}

// lastChange returns the last change of a secret of tenant blue that the bucket has.
func (v *vault) lastChange(name string) *jetstream.SecretChange {
	v.t.Helper()
	c, err := v.decider.LastSecretChange(v.t.Context(), "blue", name)
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

// setTogether sets the secret db six times at once. Every set gets a version of its own.
func (v *vault) setTogether() {
	v.t.Helper()
	var group sync.WaitGroup
	numbers := make([]uint64, 6)
	for i := range numbers {
		sealed := v.sealed(seal.Secret("blue", "db"), string(rune('a'+i)))
		group.Go(func() {
			info, err := v.blue.SetSecret(v.t.Context(), "db", sealed)
			if err != nil {
				v.t.Error(err)
				return
			}
			numbers[i] = info.Versions[0].Version
		})
	}
	group.Wait()
	slices.Sort(numbers)
	if !slices.Equal(numbers, []uint64{2, 3, 4, 5, 6, 7}) {
		v.t.Errorf("sets at the same time got the versions %d", numbers)
	}
}

// list returns the versions of a secret of tenant blue, as a viewer sees them.
func (v *vault) list(name string) []protocol.SecretVersion {
	v.t.Helper()
	reply, err := v.blue.Query(v.t.Context(), protocol.EndpointSecrets, protocol.Query{})
	if err != nil {
		v.t.Fatal(err)
	}
	for _, s := range reply.Secrets {
		if s.Name == name {
			return s.Versions
		}
	}
	return nil
}

// client returns the SDK's client of a user or viewer of tenant blue.
func (v *vault) client(conn *roleConn) *sdk.Client {
	v.t.Helper()
	c, err := sdk.Connect(v.t.Context(), sdk.Options{Conn: conn.Conn, Tenant: "blue"})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(c.Close)
	return c
}

// addFiles adds the files of the server.
func (v *vault) addFiles(places map[string][]byte) {
	v.t.Helper()
	files := 0
	err := filepath.WalkDir(v.server.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		places[name], err = os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil || files < 10 {
		v.t.Fatalf("read %d files: %v", files, err)
	}
}
