package cgroup

import (
	"bytes"
	"path/filepath"
	"strconv"
)

// Network returns how many bytes the network of a process has received and sent, without its loopback interface. Error:
// not_found if the process does not exist.
func Network(pid int) (received, sent int64, err error) { return networkOf(procDir, pid) }

func networkOf(proc string, pid int) (received, sent int64, err error) {
	data, err := readFile(filepath.Join(proc, strconv.Itoa(pid), "net", "dev"))
	if err != nil {
		return 0, 0, unreadable(err, "read the network of a container")
	}
	for line := range bytes.Lines(data) { // eth0: received packets errs drop fifo frame compressed multicast sent …
		name, counters, ok := bytes.Cut(line, []byte(":"))
		if words := bytes.Fields(counters); ok && len(words) >= 9 && string(bytes.TrimSpace(name)) != "lo" {
			received += parse(words[0])
			sent += parse(words[8])
		}
	}
	return received, sent, nil
}
