package worker

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An engine mounts three files of its own directory into each container, where root can write them without any limit.
// So each container has read-only ones from the worker in their place, with the same content.
const (
	etcHosts    = "hosts"
	etcHostname = "hostname"
	etcResolv   = "resolv.conf"
)

// etcTargets are where they are in each container. A copy does not reach what is below them.
var etcTargets = []string{"/etc/" + etcHosts, "/etc/" + etcHostname, "/etc/" + etcResolv}

func (d directory) etc() string { return filepath.Join(d.path, "etc") }

// makeEtc writes the files, for a container of this name in a network of its own.
func (d directory) makeEtc(hostname string) error {
	if err := os.MkdirAll(d.etc(), 0o700); err != nil {
		return protocol.Errorf(protocol.Internal, "", "make a container's files in /etc: %v", err)
	}
	files := map[string]string{etcHosts: hostsFile(hostname, ""), etcHostname: hostname + "\n", etcResolv: resolvFile(hostResolv())}
	if _, err := os.Stat(filepath.Join(d.etc(), etcHosts)); err == nil { // it may have the address of what runs already
		delete(files, etcHosts)
	}
	for name, content := range files {
		if err := overwrite(filepath.Join(d.etc(), name), content, os.O_CREATE); err != nil {
			return protocol.Errorf(protocol.Internal, "", "make a container's files in /etc: %v", err)
		}
	}
	return nil
}

// etcBinds mounts the files, but for those that the spec has something else for.
func (d directory) etcBinds(taken []string) []docker.Bind {
	var binds []docker.Bind
	for _, target := range etcTargets {
		if !slices.Contains(taken, target) {
			binds = append(binds, docker.Bind{Source: filepath.Join(d.etc(), path.Base(target)), Target: target, ReadOnly: true})
		}
	}
	return binds
}

// tellAddress writes which address the container has, before anything runs in it: the engine may give it another
// one at each start. A container that an older worker made has the engine's file.
func (d directory) tellAddress(c docker.Container) error {
	if c.Address == "" {
		return nil
	}
	err := overwrite(filepath.Join(d.etc(), etcHosts), hostsFile(c.Hostname, c.Address), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.Unavailable, "", "write the container's address to its /etc/hosts: %v", err)
	}
	return nil
}

// overwrite gives a file another content, and leaves it the file that it is, since it is mounted by that. One that
// gets no longer takes no space for it, so this works where the disk is full.
func overwrite(name, content string, flags int) error {
	if is, err := os.ReadFile(name); err == nil && bytes.Equal(is, []byte(content)) {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(len(content))), f.Chmod(0o644)) // whatever the umask is
}

// hostsFile is /etc/hosts as an engine writes it.
func hostsFile(hostname, address string) string {
	hosts := "127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"ff00::0\tip6-mcastprefix\n" +
		"ff02::1\tip6-allnodes\n" +
		"ff02::2\tip6-allrouters\n"
	if address != "" {
		hosts += address + "\t" + hostname + "\n"
	}
	return hosts
}

// resolvFile is /etc/resolv.conf as an engine writes it for a container in a network of its own: it answers itself,
// and names are looked for in the domains of its host.
func resolvFile(host string) string {
	var search string
	var options []string
	for line := range strings.Lines(host) {
		switch fields := strings.Fields(line); {
		case len(fields) < 2:
		case fields[0] == "search", fields[0] == "domain":
			search = "search " + strings.Join(fields[1:], " ") + "\n" // the last one counts
		case fields[0] == "options":
			options = fields[1:]
		}
	}
	if !slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "ndots:") }) {
		options = append(slices.Clone(options), "ndots:0") // names of services have no dot
	}
	return "nameserver 127.0.0.11\n" + search + "options " + strings.Join(options, " ") + "\n"
}

// hostResolv reads how this host finds names. Where systemd answers on the host, what it asks is elsewhere.
func hostResolv() string {
	data, _ := os.ReadFile("/etc/resolv.conf")
	if text := string(data); !strings.Contains(text, "nameserver 127.0.0.53") {
		return text
	}
	if behind, err := os.ReadFile("/run/systemd/resolve/resolv.conf"); err == nil {
		return string(behind)
	}
	return string(data)
}
