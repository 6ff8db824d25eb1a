package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func TestMain(m *testing.M) { Main(m) }

// recorder is a testing.TB that records failures instead of failing the test.
type recorder struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (r *recorder) Cleanup(f func())    { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool        { return len(r.errors) > 0 }
func (r *recorder) Logf(string, ...any) {} // drops messages: the expected failures must not be printed
func (r *recorder) Errorf(format string, a ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, a...))
}

func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	r.cleanups = nil
}

// TestLeaksFailATest leaves something of each kind behind and checks that the leak check reports it. Boxfleet has no
// record of these objects: otherwise it would remove them.
func TestLeaksFailATest(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	t.Cleanup(r.end)
	f := Start(r, Options{Workers: -1, BlobMaxAge: 100 * time.Millisecond})
	f.patience = 3 * time.Second
	w := f.Worker("w1", Role{Reconcile: time.Hour})
	f.Create("left") // Boxfleet deletes this sandbox
	deployment, label := f.Conn.Deployment(), "boxfleet.deployment="+f.Conn.Deployment()

	command(t, "docker", "create", "--name", "lost-"+deployment, "--label", label, "--volume", "/anonymous", Image,
		"true")
	command(t, "docker", "network", "create", "--label", label, "lost-"+deployment)
	command(t, "docker", "volume", "create", "--label", label, "lost-"+deployment)

	// An anonymous volume remains when its container is removed without -v.
	id := command(t, "docker", "create", "--volume", "/anonymous", Image, "true")
	volume := command(t, "docker", "inspect", "--format", "{{range .Mounts}}{{.Name}}{{end}}", id)
	command(t, "docker", "rm", id)
	t.Cleanup(func() { command(t, "docker", "volume", "rm", volume) })

	bridge := fmt.Sprintf("bxf-%08x", unix.Getpid())
	command(t, "ip", "link", "add", bridge, "type", "bridge")
	t.Cleanup(func() { command(t, "ip", "link", "delete", bridge) })
	addChain(t, "boxfleet-"+deployment, bridge)

	upload(t, f)

	sandboxes := filepath.Dir(f.Directories(w)[0])
	strange := filepath.Join(sandboxes, "strange")
	check(t, os.MkdirAll(filepath.Join(strange, "below"), 0o700))
	check(t, os.WriteFile(filepath.Join(w.Role.StateDir, "strange"), nil, 0o600))

	mounted := filepath.Join(f.Dir, "mounted")
	check(t, os.Mkdir(mounted, 0o700))
	check(t, unix.Mount(mounted, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) }) // unmounts in case the test ends early
	sleeper := exec.Command("sleep", "1000")
	sleeper.Env = []string{"OF=" + f.Dir}
	check(t, sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }) // Wait reports the kill

	said := strings.Join(leftOf(r), "\n")
	for what, words := range map[string]string{
		"container":        "container /lost-" + deployment,
		"network":          "network lost-" + deployment,
		"volume":           "volume lost-" + deployment,
		"anonymous volume": "volume " + volume,
		"rules":            "rules for bridge " + bridge,
		"bridge":           "bridge " + bridge + ", without a network",
		"directory":        "/sandboxes/strange of worker w1",
		"file":             "\n    strange of worker w1",
		"mount":            "mount seen by process",
		"upload":           "2 messages of uploaded trees",
		"process":          fmt.Sprintf("process %d: sleep 1000", sleeper.Process.Pid),
	} {
		if !strings.Contains(said, words) {
			t.Errorf("%s: the check does not report it", what)
		}
	}
	if strings.Contains(said, ".left") {
		t.Error("the check reports a sandbox that Boxfleet deleted")
	}
	if t.Failed() {
		t.Logf("the check reports:\n%s", said)
	}
	check(t, unix.Unmount(mounted, unix.MNT_DETACH))
	check(t, os.RemoveAll(f.Dir)) // fails while the mount exists
}

// TestAFleetThatLeavesNothingPasses also checks a test that kills its processes in the middle of their work.
func TestAFleetThatLeavesNothingPasses(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	t.Cleanup(r.end)
	f := Start(r, Options{})
	f.Create("one")
	_, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID("two"), sdk.WithWait(false))
	check(t, err)
	other, err := sdk.Connect(t.Context(), sdk.Options{Conn: f.Conn, Tenant: "other"})
	check(t, err)
	defer other.Close()
	_, err = other.Create(t.Context(), f.Spec(), sdk.WithID("three"))
	check(t, err)
	for _, p := range f.processes {
		p.Kill()
	}
	for _, line := range leftOf(r) {
		t.Error(line)
	}
}

// upload stores an uploaded tree, and makes the server keep it forever.
func upload(t *testing.T, f *Fleet) {
	t.Helper()
	conn, err := f.NATS("upload")
	check(t, err)
	defer conn.Close()
	js, err := natsjs.New(conn)
	check(t, err)
	stream, err := js.Stream(t.Context(), "OBJ_"+protocol.BucketBlobs)
	check(t, err)
	forever := stream.CachedInfo().Config
	forever.MaxAge, forever.AllowRollup = 0, true // the client's PutString needs rollups
	_, err = js.UpdateStream(t.Context(), forever)
	check(t, err)
	store, err := js.ObjectStore(t.Context(), protocol.BucketBlobs)
	check(t, err)
	_, err = store.PutString(t.Context(), "tree", "a tree")
	check(t, err)
}

// leftOf ends the test of a fleet and returns its failures.
func leftOf(r *recorder) []string {
	r.end()
	return r.errors
}

// addChain adds a chain to a table on the machine's engine.
func addChain(t *testing.T, table, chain string) {
	t.Helper()
	conn, err := nftables.New()
	check(t, err)
	conn.AddChain(&nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: table}, Name: chain})
	check(t, conn.Flush())
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
