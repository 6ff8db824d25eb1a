package supervise

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// page is the unit in which file systems free parts of a file.
const page = 4096

// FreeOutput frees, on disk, the whole pages of a file of [OpenOutput] between two offsets, and returns where the freed
// part ends. Sizes and offsets do not change, and the supervisor may continue to write; the freed part reads as zeros.
func FreeOutput(f *os.File, from, to int64) (freed int64, err error) {
	if to &^= page - 1; to <= from {
		return from, nil
	}
	// The descriptor is read-only. Through it, the same file is opened again for writing, even if its name has changed.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return from, fmt.Errorf("supervise: open an output file to free a part: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from); err != nil {
		return from, fmt.Errorf("supervise: free a part of an output file: %w", err)
	}
	return to, nil
}

// FreedOutput returns how much was freed at the beginning of a file of [OpenOutput]. A supervisor leaves no holes.
func FreedOutput(f *os.File) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	switch err {
	case nil:
		return at, nil
	case unix.ENXIO: // there is no data, or all of it was freed
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return info.Size() &^ (page - 1), nil
	case unix.EINVAL: // the file system does not report holes
		return 0, nil
	}
	return 0, fmt.Errorf("supervise: find the freed part of an output file: %w", err)
}
