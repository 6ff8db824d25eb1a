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

// stop kills all processes of a sandbox, and writes the reason into its directory. If the note cannot be written,
// the reason is known only until the worker restarts.
func (d *Watch) stop(w writer, s shortage) {
	left := protocol.Bytes(s.free).String()
	if s.inodes {
		left = fmt.Sprint(s.room.inodes, " inodes")
	}
	why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull,
		"the sandbox filled the disk of its host, which had %s left: %s", left, w.by)
	d.log.Warn("stopping a sandbox that fills a disk", "tenant", w.key.Tenant, "sandbox", w.key.ID, "disk", s.dir,
		"free", protocol.Bytes(s.free), "inodes", s.room.inodes, "by", w.by, "rate", int64(w.rate))
	d.onStop(w.key, why) // before the kill, so that the reason is known when execs end
	home := d.killAll(w.key)
	d.cancelCopies(w.key, why)
	d.releaseReserve()
	if home != "" {
		if err := writeNote(home, why); err != nil {
			d.log.Warn("could not record why a sandbox was stopped", "sandbox", w.key.ID, "error", err)
		}
	}
}

// killAll kills the containers of a sandbox, and returns the sandbox's directory, "" if no container runs.
func (d *Watch) killAll(k protocol.SandboxKey) (home string) {
	for _, c := range d.running() {
		if c.key != k {
			continue
		}
		home = c.home
		if err := c.kill(); err != nil && !errors.Is(err, unix.EPERM) {
			d.log.Warn("could not kill a process that fills a disk", "sandbox", k.ID, "error", err)
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
		d.log.Warn("could not release the space reserved on the worker's disk", "error", err)
	}
}

// kill kills the first process of a container, and with it all others, unless its PID belongs to another process by
// now.
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

// noteName is the file in a sandbox's directory that says why the watch stopped it.
const noteName = "stopped-for-disk"

func writeNote(home string, why *protocol.Error) error {
	data, err := json.Marshal(why)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, noteName), data, 0o600)
}

// ReadNote returns why a watch, perhaps an earlier worker's, stopped the sandbox with this directory; nil if none did.
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

// RemoveNote removes the note, if there is one, when the sandbox is to start again.
func RemoveNote(home string) error {
	err := os.Remove(filepath.Join(home, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
