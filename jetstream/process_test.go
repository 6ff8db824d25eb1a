package jetstream_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// serverProcess is the environment variable that makes the test binary run a NATS server, which a test can kill.
const serverProcess = "BOXFLEET_TEST_NATS_SERVER"

func serve(config string) {
	var cfg embedded.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		panic(err)
	}
	if _, err := embedded.Start(cfg); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // ReadByte returns when the test closes stdin at its end
	os.Exit(0)
}

// processes is a deployment whose servers are separate processes.
type processes struct {
	*deployment
	urls []string
}

func (p *processes) conn(t testing.TB) *jetstream.Conn { return p.connTo(t, strings.Join(p.urls, ",")) }

// startProcesses runs a cluster of three processes. The returned function kill ends the process with the given name, as
// kill -9 does.
func startProcesses(t *testing.T) (p *processes, kill func(name string)) {
	t.Helper()
	ports, err := embedded.FreePorts(6)
	must(t, err)
	p = &processes{deployment: &deployment{tenant: "t1"}}
	running := map[string]*exec.Cmd{}
	dir := t.TempDir()
	for i := range 3 {
		cfg := embedded.Config{
			Dir:         fmt.Sprintf("%s/n%d", dir, i+1),
			Name:        fmt.Sprintf("n%d", i+1),
			ClusterName: "boxfleet",
			Port:        ports[i],
			ClusterPort: ports[3+i],
			SyncLazily:  true,
		}
		for j := range 3 {
			if j != i {
				cfg.Routes = append(cfg.Routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[3+j]))
			}
		}
		p.urls = append(p.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
		running[cfg.Name] = startProcess(t, cfg)
	}
	eventually.Holds(t, 30*time.Second, "the cluster has a leader", func() bool {
		nc, err := nats.Connect(p.urls[0])
		if err != nil {
			return false
		}
		defer nc.Close()
		answer, err := nc.Request("$JS.API.INFO", nil, time.Second)
		return err == nil && !strings.Contains(string(answer.Data), `"error"`)
	})
	return p, func(name string) {
		t.Helper()
		must(t, running[name].Process.Kill())
	}
}

func startProcess(t *testing.T, cfg embedded.Config) *exec.Cmd {
	t.Helper()
	config, err := json.Marshal(cfg)
	must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverProcess+"="+string(config))
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // ends the process, unless it was killed
		_ = cmd.Wait()    // fails if the process was killed
	})
	go func() { _, _ = bufio.NewReader(stdout).ReadString(0) }() // discards what the process prints
	return cmd
}
