package worker

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Terminals are counted for the whole machine, 4096 by default, of which 1024 are the host's own. The file system
// that a container's come from can have a bound of its own, which the engine cannot be asked for.
const mostPTYs = 256

// terminals is how many a container may have: its share of those of all sandboxes, within bounds.
func terminals(slots int, get func(name string) (uint64, bool)) int {
	all, ok := get("kernel.pty.max")
	if !ok {
		return mostPTYs
	}
	reserved, _ := get("kernel.pty.reserve")
	return max(leastPTYs, min(mostPTYs, (int(all)-int(reserved))/max(slots, 1)))
}

// boundTerminals bounds the terminals of a container, by its first process, before something of the caller's runs in it.
// Where it cannot be done, which takes root and Linux 5.2, that is said once, and nothing is refused for it.
func (w *worker) boundTerminals(pid int) {
	err := setTerminals(pid, terminals(w.cfg.Slots, sysctl))
	if err != nil {
		w.unbounded.Do(func() {
			w.log.Warn("the terminals of sandboxes are not bounded: one can use up all of the machine", "error", err)
		})
	}
}

// setTerminals changes the options of the file system behind /dev/pts of a process. The others are those that the
// engine gives it: what is not said again would be lost.
func setTerminals(pid, most int) error {
	at, err := openTerminals(pid)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	fs, err := unix.Fspick(at, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("pick its terminals: %w", err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"gid", "5"}, {"mode", "0620"}, {"ptmxmode", "0666"}, {"max", fmt.Sprint(most)}} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return fmt.Errorf("set %s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigReconfigure(fs); err != nil {
		return fmt.Errorf("reconfigure them: %w", err)
	}
	return nil
}

// openTerminals opens /dev/pts of a process, without following links, and makes sure that it is not the host's.
func openTerminals(pid int) (int, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("look into the container: %w", err)
	}
	defer unix.Close(root)
	at, err := unix.Openat2(root, "dev/pts", &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return -1, fmt.Errorf("open its /dev/pts: %w", err)
	}
	var kind unix.Statfs_t
	var its, ours unix.Stat_t
	if err = unix.Fstatfs(at, &kind); err == nil {
		err = unix.Fstat(at, &its)
	}
	if err == nil && kind.Type != unix.DEVPTS_SUPER_MAGIC {
		err = errors.New("it has no terminals of its own")
	}
	if err == nil && unix.Stat("/dev/pts", &ours) == nil && ours.Dev == its.Dev {
		err = errors.New("its terminals are the host's")
	}
	if err != nil {
		unix.Close(at)
		return -1, err
	}
	return at, nil
}
