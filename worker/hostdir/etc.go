package hostdir

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
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// An engine mounts three files of its own into each container. Root in the container can write to these files, and
// their size is not limited. The worker therefore mounts read-only files with the same content over them.
const (
	etcHosts    = "hosts"
	etcHostname = "hostname"
	etcResolv   = "resolv.conf"
)

// EtcTargets are the paths of the three files in each container.
var EtcTargets = []string{"/etc/" + etcHosts, "/etc/" + etcHostname, "/etc/" + etcResolv}

func (d Dir) etc() string { return filepath.Join(d.Path, "etc") }

// WriteEtc writes the three files for a container with this hostname. It keeps an existing hosts file, because the file
// may contain the address of a running container.
func (d Dir) WriteEtc(hostname string) error {
	if err := os.MkdirAll(d.etc(), 0o700); err != nil {
		return hosterr.Wrap(err, "create the directory for a container's files in /etc")
	}
	files := map[string]string{
		etcHosts: hostsFile(hostname, ""), etcHostname: hostname + "\n", etcResolv: resolvFile(hostResolv()),
	}
	if _, err := os.Stat(filepath.Join(d.etc(), etcHosts)); err == nil {
		delete(files, etcHosts)
	}
	for name, content := range files {
		if err := overwrite(filepath.Join(d.etc(), name), content, os.O_CREATE); err != nil {
			return hosterr.Wrap(err, "create a container's files in /etc")
		}
	}
	return nil
}

// EtcBinds returns the mounts of the three files, except files at the taken paths, where the spec mounts something
// else.
func (d Dir) EtcBinds(taken []string) []docker.Bind {
	var binds []docker.Bind
	for _, target := range EtcTargets {
		if !slices.Contains(taken, target) {
			binds = append(binds, docker.Bind{Source: filepath.Join(d.etc(), path.Base(target)), Target: target, ReadOnly: true})
		}
	}
	return binds
}

// SetAddress writes a container's address to its hosts file. The engine may choose another address at each start. Call
// SetAddress after each start, before a command runs in the container. SetAddress does nothing if the container has no
// address, or if it has the engine's hosts file because an older version of the worker made the container.
func (d Dir) SetAddress(hostname, address string) error {
	if address == "" {
		return nil
	}
	err := overwrite(filepath.Join(d.etc(), etcHosts), hostsFile(hostname, address), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.Unavailable, "", "write the container's address to its /etc/hosts: %v", err)
	}
	return nil
}

// overwrite changes a file's content in place. It must keep the inode, because the container has mounted the inode. If
// the content does not grow, overwrite also works on a full disk.
func overwrite(name, content string, flags int) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, []byte(content)) {
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
	return errors.Join(f.Truncate(int64(len(content))), f.Chmod(0o644)) // OpenFile applied the umask to the mode
}

// hostsFile returns the content of /etc/hosts as an engine writes it.
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

// resolvFile returns the content of /etc/resolv.conf as an engine writes it for a container in a user-defined network:
// the engine's resolver, and the search domains and options of the host's file.
func resolvFile(host string) string {
	var search string
	var options []string
	for line := range strings.Lines(host) {
		switch fields := strings.Fields(line); {
		case len(fields) < 2:
		case fields[0] == "search", fields[0] == "domain":
			search = "search " + strings.Join(fields[1:], " ") + "\n" // the last search line counts
		case fields[0] == "options":
			options = fields[1:]
		}
	}
	if !slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "ndots:") }) {
		options = append(slices.Clone(options), "ndots:0") // the names of services contain no dot
	}
	return "nameserver 127.0.0.11\n" + search + "options " + strings.Join(options, " ") + "\n"
}

// hostResolv returns the content of this host's resolv.conf, or "" if it cannot be read. If this file names the local
// stub resolver of systemd-resolved, hostResolv returns the file with the real name servers instead.
func hostResolv() string {
	data, _ := os.ReadFile("/etc/resolv.conf") // like the engine, treat a file that cannot be read as empty
	if text := string(data); !strings.Contains(text, "nameserver 127.0.0.53") {
		return text
	}
	if upstream, err := os.ReadFile("/run/systemd/resolve/resolv.conf"); err == nil {
		return string(upstream)
	}
	return string(data)
}
