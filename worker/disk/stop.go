package disk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// stop kills all processes of a sandbox, and writes a note with the reason into the sandbox's directory. If the note
// cannot be written, the reason is lost when the worker restarts.
func (d *Watch) stop(w writer, s shortage) {
	left := protocol.Bytes(s.free).String()
	if s.inodes {
		left = fmt.Sprint(s.room.inodes, " inodes")
	}
	why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull,
		"the sandbox filled the disk of its host, which had %s left: %s", left, w.by)
	d.log.Warn("stopping a sandbox because it fills a disk of the host", "tenant", w.key.Tenant, "sandbox", w.key.ID,
		"disk", s.dir, "free", protocol.Bytes(s.free), "inodes", s.room.inodes, "by", w.by, "rate", int64(w.rate))
	d.onStop(w.key, why) // before the kill, so that the worker knows the reason when execs end
	home := d.killAll(w.key)
	d.cancelCopies(w.key, why)
	d.releaseReserve()
	if home != "" {
		if err := writeNote(home, why); err != nil {
			d.log.Warn("could not record in the sandbox's directory why the sandbox was stopped", "sandbox", w.key.ID,
				"error", err)
		}
	}
}

// killAll kills the containers of a sandbox, and returns the sandbox's directory. It returns "" if no container runs.
func (d *Watch) killAll(k protocol.SandboxKey) (home string) {
	for _, c := range d.running() {
		if c.key != k {
			continue
		}
		home = c.home
		if err := c.kill(); err != nil && !errors.Is(err, unix.EPERM) {
			d.log.Warn("could not kill a container of a sandbox that fills a disk", "sandbox", k.ID, "error", err)
		}
	}
	return home
}

func (d *Watch) cancelCopies(k protocol.SandboxKey, why *protocol.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.copies {
		if c.key == k {
			c.cancel(why)
		}
	}
}

func (d *Watch) releaseReserve() {
	if err := d.reserve.release(); err != nil {
		d.log.Warn("could not release the space that the worker reserves for itself on its disk", "error", err)
	}
}

// kill kills the first process of a container; the kernel then kills all others. kill does nothing if the PID belongs
// to another process by now.
func (c container) kill() error {
	fd, err := unix.PidfdOpen(c.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if diskuse.Group(c.pid) != c.group {
		return nil
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// noteName is the file in a sandbox's directory that says why the watch stopped the sandbox.
const noteName = "stopped-for-disk"

func writeNote(home string, why *protocol.Error) error {
	data, err := json.Marshal(why)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, noteName), data, 0o600)
}

// ReadNote returns the reason why a watch, perhaps that of an earlier worker, stopped the sandbox with this directory.
// It returns nil if no watch stopped the sandbox.
func ReadNote(home string) *protocol.Error {
	data, err := os.ReadFile(filepath.Join(home, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var why *protocol.Error
	if err = cmp.Or(err, json.Unmarshal(data, &why)); err != nil || why == nil {
		why = protocol.Errorf(
			protocol.ResourceExhausted,
			protocol.ReasonDiskFull,
			"the sandbox filled the disk of its host",
		)
	}
	return why
}

// RemoveNote removes the note, before the sandbox starts again. A missing note is no error.
func RemoveNote(home string) error {
	err := os.Remove(filepath.Join(home, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
