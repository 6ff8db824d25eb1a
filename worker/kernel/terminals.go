package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The kernel limits the number of terminals of the whole machine, by default to 4096, of which 1024 are reserved for
// the host itself. The file system that provides a container's terminals can have its own limit, but the engine has no
// option for that limit. Boxfleet sets a limit between the following two values for each container.
const (
	leastTerminals = 24
	mostTerminals  = 256
)

// LimitTerminals limits the number of terminals in a container to its share on a host with this number of slots. pid is
// the container's first process. LimitTerminals needs root and Linux 5.2.
func LimitTerminals(pid, slots int) error { return setTerminals(pid, terminals(slots, sysctl)) }

// terminals returns how many terminals a container may have.
func terminals(slots int, get func(name string) (uint64, bool)) int {
	all, ok := get("kernel.pty.max")
	if !ok {
		return mostTerminals
	}
	reserved, _ := get("kernel.pty.reserve")
	return max(leastTerminals, min(mostTerminals, (int(all)-int(reserved))/max(slots, 1)))
}

// setTerminals sets the maximum number of terminals of the file system at a process's /dev/pts. The kernel resets all
// options that are not given, so setTerminals also repeats the options that the engine sets.
func setTerminals(pid, most int) error {
	at, err := openTerminals(pid)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	fs, err := unix.Fspick(at, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("select the container's /dev/pts for new options: %w", err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"gid", "5"}, {"mode", "0620"}, {"ptmxmode", "0666"}, {"max", fmt.Sprint(most)}} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return fmt.Errorf("set %s of the container's /dev/pts: %w", option[0], err)
		}
	}
	if err := unix.FsconfigReconfigure(fs); err != nil {
		return fmt.Errorf("reconfigure the container's /dev/pts: %w", err)
	}
	return nil
}

// openTerminals opens a process's /dev/pts without following links, and checks that it is not the /dev/pts of the host.
func openTerminals(pid int) (int, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the container's root: %w", err)
	}
	defer unix.Close(root)
	at, err := unix.Openat2(root, "dev/pts", &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open the container's /dev/pts: %w", err)
	}
	if err := checkTerminals(at); err != nil {
		unix.Close(at)
		return -1, err
	}
	return at, nil
}

func checkTerminals(at int) error {
	var kind unix.Statfs_t
	var its, ours unix.Stat_t
	if err := errors.Join(unix.Fstatfs(at, &kind), unix.Fstat(at, &its)); err != nil {
		return err
	}
	if kind.Type != unix.DEVPTS_SUPER_MAGIC {
		return errors.New("the container has no file system for terminals at /dev/pts")
	}
	if unix.Stat("/dev/pts", &ours) == nil && ours.Dev == its.Dev {
		return errors.New("the container shares its /dev/pts with the host")
	}
	return nil
}
