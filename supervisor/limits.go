package supervisor

import (
	"fmt"
	"syscall"
)

// What one process may have, and all that are started from here: they inherit it, and cannot raise it. The engine is
// not asked for it, since it may not raise what it has itself, and then starts no container.
//
// Nothing is set of what the kernel counts by user id, such as processes: it counts over all sandboxes and the host,
// so that one sandbox would use up what others with the same user have. Processes are the container's own limit.
var limits = []struct {
	name     string
	resource int
	most     uint64
}{
	{"open files", syscall.RLIMIT_NOFILE, mostFiles},
	// 1 byte is no core file, and says that the host's handler of them, a program of the host's root, is not called
	// either. 0 would not say that.
	{"core files", syscall.RLIMIT_CORE, 1},
}

const mostFiles = 65536

// limit sets the limits, no higher than they are.
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
