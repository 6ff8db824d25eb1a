package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Names of credentials beside those of the coordinators and the worker.
const (
	clientName = "anna"  // the user that the clients' programs are
	readerName = "folds" // the connection that folds the log
)

// creds returns the file with the credentials of a process, or "" if the fleet has none.
func (f *releases) creds(name string) string {
	if f.authority == "" || name == "nats" {
		return ""
	}
	return filepath.Join(f.dir, name+".creds")
}

// makeAuthority makes an authority with the earlier release, and credentials for all but the worker. It returns the
// part of the server's configuration with which the server trusts the authority.
func (f *releases) makeAuthority() string {
	f.t.Helper()
	f.authority = filepath.Join(f.dir, "authority")
	f.auth(f.before, "init", f.authority)
	trust := f.auth(f.before, "config", "--dir", f.authority, "--resolver-dir", filepath.Join(f.dir, "accounts"))
	for _, args := range [][]string{
		{"coordinator", "c1"}, {"coordinator", "c2"}, {"coordinator", readerName},
		{"user", clientName, "--tenant", "default"},
	} {
		f.add(f.before, args...)
	}
	return trust
}

// auth runs a command about the authority.
func (f *releases) auth(release string, args ...string) string {
	f.t.Helper()
	client := f.client.Swap(&release)
	defer f.client.Store(client)
	return f.do(append([]string{"auth"}, args...)...)
}

// add makes credentials. They begin with the role and the name.
func (f *releases) add(release string, args ...string) {
	f.t.Helper()
	f.auth(release, append([]string{"add", "--dir", f.authority, "--file", f.creds(args[1])}, args...)...)
}

// replaceCreds replaces the credentials of a role, while its process runs with the old ones.
func (f *releases) replaceCreds(release, role, name string) {
	f.t.Helper()
	if err := os.Rename(f.creds(name), f.creds(name)+".old"); err != nil {
		f.t.Fatal(err)
	}
	f.add(release, role, name, "--again")
}

// push tells the server what an authority permits in this release.
func (f *releases) push(release string) {
	f.t.Helper()
	f.auth(release, "push", "--dir", f.authority)
}

// hostID finds the ID of a host in the error of a worker whose credentials are for another host.
var hostID = regexp.MustCompile(`--host ([A-Z2-7]{26})\b`)

// learnHost starts the worker with credentials for an unknown host, as docs/operate.md does, and makes credentials for
// the host that the worker's error names.
func (f *releases) learnHost(release string) {
	f.t.Helper()
	if f.authority == "" {
		return
	}
	f.add(release, "worker", "w1", "--host", "new")
	f.runRole(release, "w1")
	p := f.running["w1"]
	select {
	case <-p.ended:
	case <-time.After(readyTime):
		f.t.Fatalf("%s: the worker with credentials for an unknown host runs on: %s", f.step, p.output.Bytes())
	}
	host := hostID.FindSubmatch(p.output.Bytes())
	if host == nil {
		f.t.Fatalf("%s: the worker names no host: %s", f.step, p.output.Bytes())
	}
	f.auth(release, "revoke", "worker", "w1", "--dir", f.authority)
	f.push(release)
	if err := os.Remove(f.creds("w1")); err != nil {
		f.t.Fatal(err)
	}
	f.add(release, "worker", "w1", "--host", string(host[1]))
}

// nothingWasRefused checks the log of the NATS server: it refused no subject to any process of either release.
func (f *releases) nothingWasRefused() {
	f.t.Helper()
	for line := range strings.Lines(string(f.running["nats"].output.Bytes())) {
		if strings.Contains(line, "Violation") {
			f.t.Errorf("the NATS server refused a subject: %s", strings.TrimSpace(line))
		}
	}
}
