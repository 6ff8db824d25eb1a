package supervisor

import (
	"fmt"
	"syscall"
)

// These are limits of each process started from here: it inherits them and cannot raise them. They are not set by the
// engine, because an engine that has lower limits itself would fail to start the container.
//
// Nothing is limited that the kernel counts by user id, such as processes: it counts over all sandboxes and the host,
// so one sandbox could use up the share of another with the same user. The container limits processes.
var limits = []struct {
	name     string
	resource int
	most     uint64
}{
	{"open files", syscall.RLIMIT_NOFILE, mostFiles},
	// 1 byte means no core file, and that the host's core handler, which runs as the host's root, is not called either.
	// With 0 it would be called.
	{"core files", syscall.RLIMIT_CORE, 1},
}

const mostFiles = 65536

// limit sets the limits, but raises none.
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
