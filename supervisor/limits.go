package supervisor

import (
	"fmt"
	"syscall"
)

// limits apply to each process that this process starts. The processes inherit the limits, and cannot raise them. The
// engine does not set them, because an engine that has lower limits itself could not start the container.
//
// There are no limits here for resources that the kernel counts by user id, such as processes. The kernel counts such a
// resource over all sandboxes and the host, so one sandbox could use up the limit of another sandbox with the same user
// id. The number of processes is limited by the container.
var limits = []struct {
	name     string
	resource int
	most     uint64
}{
	{"open files", syscall.RLIMIT_NOFILE, mostFiles},
	// With a limit of 1 byte there are no core files, and the kernel does not call the host's core handler, which runs as
	// the host's root. With a limit of 0, the kernel would still call the handler.
	{"core files", syscall.RLIMIT_CORE, 1},
}

const mostFiles = 65536

// limit sets the limits of this process. It raises no limit that is lower already.
func limit() error {
	for _, l := range limits {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(l.resource, &now); err != nil {
			return fmt.Errorf("supervisor: read the limit of %s: %w", l.name, err)
		}
		most := min(now.Max, l.most)
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("supervisor: limit %s: %w", l.name, err)
		}
	}
	return nil
}
