package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// running is the containers that run still.
func (d *diskWatch) running() []diskContainer {
	d.mu.Lock()
	defer d.mu.Unlock()
	var running []diskContainer
	for pid, c := range d.containers {
		if c.group == "" || diskuse.Group(pid) != c.group {
			delete(d.containers, pid)
			continue
		}
		running = append(running, c)
	}
	return running
}

// byWriting has those containers first whose processes wrote the most since the sample before.
func byWriting(containers []diskContainer, now, before *diskSample) []diskContainer {
	wrote := func(c diskContainer) int64 {
		n := now.written[c.source("processes")]
		if before != nil {
			n -= before.written[c.source("processes")]
		}
		return n
	}
	slices.SortFunc(containers, func(a, b diskContainer) int { return cmp.Compare(wrote(b), wrote(a)) })
	return containers
}

// stop ends everything of a sandbox at once, and notes why. Where the note cannot be written the worker knows it
// as long as it runs.
func (d *diskWatch) stop(writer diskWriter, room diskRoom, inodes bool) {
	left := protocol.Bytes(room.free).String()
	if inodes {
		left = fmt.Sprint(room.inodes, " inodes")
	}
	why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull,
		"the disk of its host had %s left, and the sandbox filled it: %s", left, writer.by)
	d.log.Warn("a sandbox is stopped, since it fills a disk", "tenant", writer.key.Tenant, "sandbox", writer.key.ID,
		"disk", room.dir, "free", protocol.Bytes(room.free), "inodes", room.inodes, "by", writer.by, "rate", int64(writer.rate))
	d.stopped(writer.key, why) // so that what ends with it knows why
	home := ""
	for _, c := range d.running() {
		if c.key == writer.key {
			home = c.home
			if err := c.kill(); err != nil && !errors.Is(err, unix.EPERM) {
				d.log.Warn("a process that fills a disk is not ended", "sandbox", writer.key.ID, "error", err)
			}
		}
	}
	d.mu.Lock()
	for c := range d.copies {
		if c.key == writer.key {
			c.cancel(why)
		}
	}
	d.mu.Unlock()
	d.release()
	if home != "" {
		if err := noteDiskStop(home, why); err != nil {
			d.log.Warn("why a sandbox was stopped is not noted beside it", "sandbox", writer.key.ID, "error", err)
		}
	}
}

func (d *diskWatch) release() {
	if err := d.reserve.release(); err != nil {
		d.log.Warn("the room that was held back on the worker's disk is not given away", "error", err)
	}
}

// kill ends the first process of a container, and so all of them, if it is that container's still.
func (c diskContainer) kill() error {
	fd, err := unix.PidfdOpen(c.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if diskuse.Group(c.pid) != c.group { // another process has the number
		return nil
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

func deviceOf(dir string) uint64 {
	room, _ := readRoom(dir)
	return room.device
}

// diskNote is the file beside a sandbox that says why the watch over the disk stopped it.
const diskNote = "stopped-for-disk"

func noteDiskStop(home string, why *protocol.Error) error {
	data, err := json.Marshal(why)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, diskNote), data, 0o600)
}

// diskStopped has the mailbox of a sandbox that was stopped say so.
func (w *worker) diskStopped(k key, why *protocol.Error) {
	w.mu.Lock()
	s := w.sandboxes[k]
	w.mu.Unlock()
	if s == nil { // the next tenure's reads the note
		return
	}
	s.mu.Lock()
	s.diskStop = why
	if s.cancelOp != nil && s.op == opCreate && !s.making {
		s.cancelOp()
	}
	s.mu.Unlock()
	s.look()
	if os.Geteuid() == 0 {
		return
	}
	go func() { // who is not root may not end the processes of others, but the engine may
		if err := w.engine.KillContainer(context.Background(), s.name()); err != nil {
			s.log.Warn("a sandbox that fills a disk is not ended", "error", err)
		}
	}()
}

// diskStopped is why this process's watch over the disk stopped the sandbox, nil where it did not.
func (s *sandbox) diskStopped() *protocol.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diskStop
}

// stoppedForDisk is why the watch over the disk stopped the sandbox, nil where it did not.
func (s *sandbox) stoppedForDisk(generation uint64) *protocol.Error {
	why := s.diskStopped()
	if why != nil {
		return why
	}
	data, err := os.ReadFile(filepath.Join(s.directory(generation).path, diskNote))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = cmp.Or(err, json.Unmarshal(data, &why)); err != nil || why == nil {
		why = protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull, "the disk of its host was full, and the sandbox filled it")
	}
	return why
}

// forgetDiskStop has a sandbox that is started again begin without a word of before.
func (s *sandbox) forgetDiskStop(generation uint64) error {
	s.mu.Lock()
	s.diskStop = nil
	s.mu.Unlock()
	err := os.Remove(filepath.Join(s.directory(generation).path, diskNote))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostError(err, "forget why the sandbox was stopped")
	}
	return nil
}
