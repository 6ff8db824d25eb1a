package supervisor

import (
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

// writeRecord puts an exec's sealed exit record on disk, whole or not at all. It is there before
// anybody is told of the result, so that a worker that finds PID 1 gone knows what ended.
func (s *supervisor) writeRecord(id string, r *control.Result) {
	s.mu.Lock()
	key := s.welcome.Key
	s.mu.Unlock()
	data := control.Seal(key, control.Record{Boot: s.boot, Result: *r})
	s.files.acquire()
	defer s.files.release()
	if err := replaceFile(s.execsFD, id+"/"+control.RecordName, data); err != nil {
		s.config.Logger.Error("an exit record is not on disk", "exec", id, "error", err)
	}
}

func replaceFile(dir int, path string, data []byte) error {
	next := path + ".new"
	fd, err := unix.Openat(dir, next, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			unix.Close(fd)
			unix.Unlinkat(dir, next, 0)
			return err
		}
		data = data[n:]
	}
	if err := unix.Close(fd); err != nil {
		return err
	}
	return unix.Renameat(dir, next, dir, path)
}
