package files

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// giving sets owners during one operation, because a helper without the capability CHOWN cannot. The worker is root on
// the host, and the helper may be hostile. So a helper gets no more than the container's root would with CHOWN: the
// descriptor must be
//
//   - of an operation that has an owner, and not of more files than the operation can make;
//   - a regular file with one name, or a directory, of a file system that answers;
//   - opened in the container: its mount is one of the container's mounts. Files that the worker has opened, such as
//     the output files that it passes to PID 1, are not. A mount for reading only refuses the change itself;
//   - owned by the user that sent it, as the kernel says;
//   - without the bits setuid and setgid, also afterwards.
type giving struct {
	s        *Session
	uid, gid int  // the owner of the request
	named    bool // the helper names the owner of each file, as the tar stream has them
	most     func() int64
	done     int64
}

// tarEntry is the minimum size of an entry in a tar stream, in bytes.
const tarEntry = 512

// givingOf returns what an operation may give away. An operation without an owner may give nothing away. sent counts
// the bytes of the operation's stream.
func givingOf(s *Session, c *control.FileCall, sent *atomic.Int64) (*giving, error) {
	g := &giving{s: s, most: func() int64 { return 1 }}
	owner := ""
	switch {
	case c.Write != nil:
		owner = c.Write.Owner
	case c.Mkdir != nil:
		owner = c.Mkdir.Owner
	case c.Unpack != nil:
		owner, g.named = c.Unpack.Owner, c.Unpack.KeepOwner
		g.most = func() int64 { return sent.Load() / tarEntry }
	}
	if s.config.Container == nil || owner == "" && !g.named {
		return nil, nil
	}
	if owner != "" {
		var err error
		if g.uid, g.gid, err = protocol.FileOwner("owner", owner); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// refusal is why the worker did not set an owner. It ends the operation.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// replyGiving receives a reply, and sets the owners that the helper asks for meanwhile. The error is a *refusal if the
// helper did not want to know about it.
func (h *helper) replyGiving(g *giving) (reply *control.FileReply, file int, err error) {
	for {
		reply, file, err := h.reply()
		if err != nil || reply.Give == nil {
			return reply, file, err
		}
		if file < 0 || g == nil {
			packet.Discard(file)
			return nil, -1, errUnexpected
		}
		err = g.give(h, reply.Give, file)
		packet.Discard(file)
		switch {
		case reply.Give.Answer:
			if err := h.link.SendMessage(&control.Given{Error: protocol.AsError(err)}, -1); err != nil {
				return nil, -1, err
			}
		case err != nil:
			return nil, -1, &refusal{err}
		}
	}
}

// give sets the owner of an open file.
func (g *giving) give(h *helper, asked *control.Give, file int) error {
	if g.done++; g.done > g.most() {
		return notGiven("the process that works on the sandbox's files asked for more files than the operation makes")
	}
	uid, gid := g.uid, g.gid
	if g.named {
		uid, gid = int(asked.UID), int(asked.GID)
	}
	if uid < 0 || gid < 0 || uid >= 1<<32-1 || gid >= 1<<32-1 { // the kernel takes -1 as "do not change"
		return protocol.Invalid("owner", "%d:%d is not an owner", uid, gid)
	}
	if err := g.s.mayChange(); err != nil {
		return err
	}
	sender, known := h.link.Sender()
	if !known {
		return notGiven("the kernel does not say which process asked for it")
	}
	if err := checkGiven(file, sender); err != nil {
		return err
	}
	if err := checkMount(g.s.config.Container, file); err != nil {
		return err
	}
	if err := unix.Fchown(file, uid, gid); err != nil {
		return chownFailed(err)
	}
	return dropSpecial(file)
}

const special = unix.S_ISUID | unix.S_ISGID

// checkGiven checks what the file is.
func checkGiven(file int, sender uint32) error {
	var stat unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(file, &stat), unix.Fstatfs(file, &system)); err != nil {
		return chownFailed(err)
	}
	kind := stat.Mode & unix.S_IFMT
	switch {
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return notGiven("it is neither a regular file nor a directory")
	case kind == unix.S_IFREG && stat.Nlink != 1:
		return notGiven("it has several names, or none")
	case stat.Uid != sender:
		return notGiven("it belongs to another user than the one who does the operation")
	case stat.Mode&special != 0:
		return notGiven("it has one of the mode bits setuid and setgid")
	case !control.ReadableThere(int64(system.Type)):
		return notGiven("it is on a file system of a kind on which no worker sets owners")
	}
	return nil
}

// checkMount checks that a file was opened in the container, and that ids are the same there as on the host. container
// is the directory of the container's PID 1 in /proc.
func checkMount(container *os.Root, file int) error {
	ids, err := container.ReadFile("uid_map")
	if err != nil {
		return notGiven(fmt.Sprintf("the container has ended: %v", errors.Unwrap(err)))
	}
	groups, err := container.ReadFile("gid_map")
	if err != nil || !sameIDs(ids) || !sameIDs(groups) {
		return notGiven("ids mean other users in the container's user namespace; do the operation as that user")
	}
	mounts, err := container.ReadFile("mountinfo")
	if err != nil {
		return notGiven(fmt.Sprintf("the container has ended: %v", errors.Unwrap(err)))
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", file))
	if err != nil {
		return chownFailed(err)
	}
	mount := mountOf(info)
	for line := range strings.Lines(string(mounts)) {
		if id, _, _ := strings.Cut(line, " "); mount != "" && id == mount {
			return nil
		}
	}
	return notGiven("it was not opened in the container")
}

// sameIDs reports whether a map of ids changes none.
func sameIDs(table []byte) bool {
	fields := strings.Fields(string(table))
	return len(fields) == 3 && fields[0] == "0" && fields[1] == "0" && fields[2] == strconv.FormatInt(1<<32-1, 10)
}

// mountOf returns the number of the mount in which a file was opened, from /proc/self/fdinfo.
func mountOf(info []byte) string {
	lines := bufio.NewScanner(bytes.NewReader(info))
	for lines.Scan() {
		if id, found := strings.CutPrefix(lines.Text(), "mnt_id:"); found {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// dropSpecial removes the mode bits that a directory keeps when it gets another owner, if a process of the old owner
// has set them in the last moment. Of regular files, the kernel removes them.
func dropSpecial(file int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(file, &stat); err != nil {
		return chownFailed(err)
	}
	if stat.Mode&special == 0 {
		return nil
	}
	if err := unix.Fchmod(file, stat.Mode&0o7777&^special); err != nil {
		return chownFailed(err)
	}
	return nil
}

func notGiven(why string) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
		"the worker did not set the owner of a file: %s", why)
	e.Field = "owner"
	return e
}

func chownFailed(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonReadOnly,
			"the worker did not set the owner of a file: its file system is mounted for reading only")
	case errors.Is(err, unix.EPERM):
		return notGiven("the host's kernel refused it; the worker needs the capability CHOWN, and the file must be mutable")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonDiskFull,
			"the worker did not set the owner of a file: %v", err)
	}
	return protocol.Errorf(protocol.Unavailable, "", "the worker did not set the owner of a file: %v", err)
}
