package hostfiles

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// mountTable contains the mounts that a process sees, by mount id.
type mountTable map[int]*mountinfo.Info

// readMounts reads the mounts of this process.
func readMounts() (mountTable, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot be checked: %w", err)
	}
	return tableOf(mounts), nil
}

// readMountsOf reads the mounts of another process.
func readMountsOf(pid int) (mountTable, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, nil)
	return tableOf(mounts), err
}

func tableOf(mounts []*mountinfo.Info) mountTable {
	table := mountTable{}
	for _, m := range mounts {
		table[m.ID] = m
	}
	return table
}

// hasMountIn reports whether a file system is mounted inside a mount.
func (t mountTable) hasMountIn(m *mountinfo.Info) bool {
	for _, other := range t {
		if other.Parent == m.ID && other.ID != m.ID {
			return true
		}
	}
	return false
}

// place is the place of a file in its file system. Several mounts may show the same place.
type place struct{ device, path string }

// place returns the place of an open file.
func (t mountTable) place(f *os.File) (place, error) {
	id, err := mountID(f)
	if err != nil {
		return place{}, err
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return place{}, err
	}
	m := t[id]
	if m == nil || !isBelow(name, m.Mountpoint) {
		return place{}, errors.New("is no longer in the file system")
	}
	return place{
		device: fmt.Sprintf("%d:%d", m.Major, m.Minor),
		path:   path.Join(m.Root, strings.TrimPrefix(name, strings.TrimSuffix(m.Mountpoint, "/"))),
	}, nil
}

// mountID returns the id of the mount through which a file was opened.
func mountID(f *os.File) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("the kernel does not report through which mount a file was opened")
}
