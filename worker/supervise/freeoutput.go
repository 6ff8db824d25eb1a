package supervise

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// page is the unit in which file systems free the space of a part of a file.
const page = 4096

// FreeOutput frees the disk space of the whole pages between two offsets of a file from [OpenOutput]. It returns the
// offset where the freed part ends. The freed part then reads as zeros. The file's size and the offsets in the file do
// not change, and the supervisor may continue to write.
func FreeOutput(f *os.File, from, to int64) (freed int64, err error) {
	if to &^= page - 1; to <= from {
		return from, nil
	}
	// f is open for reading only. Opening the path of its descriptor in /proc opens the same file for writing, even if
	// the file was renamed.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return from, fmt.Errorf("supervise: open an output file for freeing a part of the file: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from); err != nil {
		return from, fmt.Errorf("supervise: free a part of an output file: %w", err)
	}
	return to, nil
}

// FreedOutput returns how many bytes at the beginning of a file from [OpenOutput] were freed. A freed part is a hole in
// the file; supervisors leave no holes.
func FreedOutput(f *os.File) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	switch err {
	case nil:
		return at, nil
	case unix.ENXIO: // the file is empty, or all of its pages were freed
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
