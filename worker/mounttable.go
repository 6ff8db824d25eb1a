package worker

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// mountTable is what is mounted for this process, by the mount's id.
type mountTable map[int]*mountinfo.Info

func readMounts() (mountTable, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot be judged: %w", err)
	}
	table := mountTable{}
	for _, m := range mounts {
		table[m.ID] = m
	}
	return table, nil
}

// place is where a file is in its file system. Two mounts may show the same one.
type place struct{ device, path string }

// place finds the place of an open file.
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
	if m == nil || !below(name, m.Mountpoint) {
		return place{}, errors.New("is not in the file system any more")
	}
	return place{
		device: fmt.Sprintf("%d:%d", m.Major, m.Minor),
		path:   path.Join(m.Root, strings.TrimPrefix(name, strings.TrimSuffix(m.Mountpoint, "/"))),
	}, nil
}

// mountID says through which mount a file was opened.
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
	return 0, errors.New("the kernel does not say where a file is mounted")
}
