package supervise

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// page is what a file system frees at least.
const page = 4096

// FreeOutput gives back to the disk what is in a file of [OpenOutput] between two offsets, as far as that is
// whole pages, and says up to where. Sizes and offsets stay, and the supervisor may go on writing; what was
// freed reads as zeros.
func FreeOutput(f *os.File, from, to int64) (freed int64, err error) {
	if to &^= page - 1; to <= from {
		return from, nil
	}
	// The descriptor is for reading. By it the file itself is opened once more, whatever its name is now.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return from, fmt.Errorf("supervise: open an output file to free some of it: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from); err != nil {
		return from, fmt.Errorf("supervise: free some of an output file: %w", err)
	}
	return to, nil
}

// FreedOutput is how much at the beginning of a file of [OpenOutput] was freed. A supervisor leaves no holes.
func FreedOutput(f *os.File) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	switch err {
	case nil:
		return at, nil
	case unix.ENXIO: // there is no data, or it has all been freed
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return info.Size() &^ (page - 1), nil
	case unix.EINVAL: // a file system that does not say
		return 0, nil
	}
	return 0, fmt.Errorf("supervise: look for what was freed of an output file: %w", err)
}
