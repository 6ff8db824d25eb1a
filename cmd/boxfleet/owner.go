package main

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
)

// notOurs returns the error for a user who may not use the `boxfleet up` on this machine. owner is the uid under which
// this `up` runs, or -1 if unknown.
func notOurs(owner int) error {
	const do = "run this as that user, start your own fleet with `boxfleet up`, or name a NATS server with --nats"
	switch {
	case owner < 0:
		return protocol.Errorf(protocol.PermissionDenied, "",
			"the `boxfleet up` of this machine belongs to another user, or to another data directory: %s", do)
	case owner == os.Getuid():
		return protocol.Errorf(protocol.PermissionDenied, "",
			"the `boxfleet up` of this machine has another data directory: name it with --data-dir, start your own fleet "+
				"with `boxfleet up`, or name a NATS server with --nats")
	}
	name := fmt.Sprintf("uid %d", owner)
	if u, err := user.LookupId(strconv.Itoa(owner)); err == nil {
		name = u.Username
	}
	return protocol.Errorf(protocol.PermissionDenied, "", "the `boxfleet up` of this machine belongs to %s: %s", name, do)
}

// ownerOf returns the uid of a file's owner. If the file cannot be inspected, ownerOf uses the nearest parent directory
// that can be inspected. It returns -1 if the owner is unknown.
func ownerOf(file string) int {
	for {
		info, err := os.Stat(file)
		if err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				return int(stat.Uid)
			}
			return -1
		}
		above := filepath.Dir(file)
		if above == file {
			return -1
		}
		file = above
	}
}

// listenerOf returns the uid of the process that listens on the port of a URL on this machine. It reads the kernel's
// socket tables. It returns -1 if the uid is unknown.
func listenerOf(where string) int {
	u, err := url.Parse(where)
	if err != nil {
		return -1
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return -1
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if uid := listenerIn(table, port); uid >= 0 {
			return uid
		}
	}
	return -1
}

// listenerIn searches a socket table for a listening port. The columns are number, local address, remote address,
// state, queues, timer, retransmits, uid.
func listenerIn(table string, port int) int {
	const listens = "0A"
	f, err := os.Open(table)
	if err != nil {
		return -1
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[3] != listens || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		if uid, err := strconv.Atoi(fields[7]); err == nil {
			return uid
		}
	}
	return -1
}
