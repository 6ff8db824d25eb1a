package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// LowLimits returns a warning for each kernel limit that is too low for a host with this number of slots. The warning
// says which value to set. connections is the maximum number of connections of one sandbox.
func LowLimits(slots, connections int) (warnings []string) {
	return lowLimits(slots, connections, sysctl)
}

// lowLimits is LowLimits, but gets the values of the limits from a function. It skips limits that the kernel does not
// have.
func lowLimits(slots, connections int, get func(name string) (uint64, bool)) (warnings []string) {
	for _, l := range []struct {
		name      string
		each, own uint64 // how much one sandbox needs, and how much the host's own programs need
		what      string
	}{
		// The first two limits apply to each user ID separately. To the kernel, root in each sandbox is the host's root,
		// unless the engine maps user IDs.
		{"fs.inotify.max_user_instances", 32, 128, "file watchers of one user id, in all sandboxes and the host together"},
		{"fs.inotify.max_user_watches", 1024, 8192, "watched files of one user id, in all sandboxes and the host together"},
		{"kernel.pty.max", leastTerminals, 1024, "terminals of all sandboxes"},
		{"net.netfilter.nf_conntrack_max", uint64(connections), 16384, "connections of all sandboxes"},
		{"kernel.pid_max", protocol.DefaultPIDs, 4096, "processes and threads of the machine"},
		{"kernel.threads-max", protocol.DefaultPIDs, 4096, "processes and threads of the machine"},
		{"fs.file-max", 16384, 65536, "open files of the machine"},
	} {
		want := uint64(slots)*l.each + l.own
		if have, ok := get(l.name); ok && have < want {
			warnings = append(warnings, fmt.Sprintf(
				"%s, the limit of %s, is %d: for %d sandboxes raise it to %d (sysctl -w %s=%d), or lower worker.slots",
				l.name, l.what, have, slots, want, l.name, want))
		}
	}
	return warnings
}

// sysctl reads a parameter of this machine's kernel.
func sysctl(name string) (value uint64, ok bool) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return 0, false
	}
	value, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return value, err == nil
}
