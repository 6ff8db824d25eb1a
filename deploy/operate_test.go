package deploy

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
)

// shellBlock is a block of commands in a page.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestTheCommandsOfThePageOnOperatingWork runs the blocks of docs/operate.md in order. It prints the commands and their
// output, so `make operate-demo` shows the life of a fleet.
func TestTheCommandsOfThePageOnOperatingWork(t *testing.T) {
	page, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	m := boot(t)
	m.copy(t, packages(t, "1.0.0")+"/.", "/root")
	m.takeImage(t)
	m.run(t, "echo 127.0.0.1 n1.example.com >>/etc/hosts")
	blocks, host, began := shellBlock.FindAllStringSubmatch(string(page), -1), "", time.Now()
	for _, block := range blocks {
		script := strings.ReplaceAll(block[1], "--image busybox", "--image "+demoImage)
		if strings.Contains(script, "EUJWVNGE5TFI6JAATMATQMD76O") {
			if host == "" {
				host = m.hostID(t)
			}
			script = strings.ReplaceAll(script, "EUJWVNGE5TFI6JAATMATQMD76O", host)
		}
		isForget := strings.Contains(script, "host forget")
		if isForget {
			m.loseHost(t)
		}
		fmt.Fprintf(t.Output(), "\n> %s\n", strings.ReplaceAll(strings.TrimSpace(script), "\n", "\n> "))
		fmt.Fprintln(t.Output(), m.run(t, "cd /root\n"+script))
		if isForget {
			m.run(t, "systemctl kill --signal CONT boxfleet-worker")
		}
	}
	fmt.Fprintf(t.Output(), "\nThe commands of the page took %s.\n", time.Since(began).Round(time.Second))
	if len(blocks) < 10 {
		t.Errorf("the page has %d blocks", len(blocks))
	}
	if left := m.run(t, "ls -d /etc/boxfleet* /var/lib/boxfleet* 2>/dev/null || true"); left != "" {
		t.Errorf("left on the machine: %s", left)
	}
}

var hostInError = regexp.MustCompile(`host: is ([A-Z0-9]+), but`)

// hostID waits until the worker's log names the host.
func (m *machine) hostID(t *testing.T) string {
	t.Helper()
	var host []string
	eventually.Holds(t, time.Minute, "the worker names its host", func() bool {
		log, err := m.try("journalctl --no-pager --unit boxfleet-worker")
		host = hostInError.FindStringSubmatch(log)
		return err == nil && host != nil
	})
	return host[1]
}

// loseHost stops the worker's process as a dead machine would, and waits until the host is lost.
func (m *machine) loseHost(t *testing.T) {
	t.Helper()
	m.run(t, "systemctl kill --signal STOP boxfleet-worker")
	eventually.Holds(t, 90*time.Second, "the host is lost", func() bool {
		hosts, err := m.try("boxfleet host list -o json")
		return err == nil && strings.Contains(hosts, `"lost"`)
	})
}
