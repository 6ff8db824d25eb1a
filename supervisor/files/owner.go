package files

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// giver gives files away during one call.
type giver struct {
	link  *packet.Conn
	gives bool // the worker sets owners, see [control.Give]
}

// special are the mode bits that a file loses when it gets another owner, see chown(2).
const special = unix.S_ISUID | unix.S_ISGID

// mayChown reports whether this process has the capability CHOWN.
func mayChown() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_CHOWN) != 0
}

// ownerOf parses the owner of a request. -1 stands for the present owner.
func ownerOf(owner string) (uid, gid int, err error) {
	if owner == "" {
		return -1, -1, nil
	}
	return protocol.FileOwner("owner", owner)
}

// describe sets the owner and the mode of an open file that belongs to the user. An empty owner and a mode of nil
// change nothing. If the kernel does not let the user give the file away, and the worker sets owners, describe sets the
// mode only, and returns a function that asks the worker. Afterwards the user can change the file's mode no more.
func (g *giver) describe(fd int, owner string, mode *uint32) (ask func() error, err error) {
	uid, gid, err := ownerOf(owner)
	if err != nil {
		return nil, err
	}
	given, err := giveTo(fd, uid, gid)
	if err != nil {
		return nil, err
	}
	if !given {
		if !g.gives {
			return nil, notGiven(owner)
		}
		if mode != nil && *mode&special != 0 {
			e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
				"a file with the mode %04o cannot be given to %s, because the user lacks the capability CHOWN; leave out the "+
					"bits setuid and setgid, or do the operation as that user", *mode, owner)
			e.Field = "mode"
			return nil, e
		}
		ask = func() error { return g.ask(fd, uid, gid) }
	}
	if mode == nil {
		return ask, nil
	}
	return ask, unix.Fchmod(fd, *mode)
}

// giveTo sets the owner of an open file. It returns false if the kernel does not let the user do so.
func giveTo(fd, uid, gid int) (given bool, err error) {
	if uid < 0 {
		return true, nil
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return false, err
	}
	if int(stat.Uid) == uid && int(stat.Gid) == gid {
		return true, nil
	}
	err = unix.Fchown(fd, uid, gid)
	if err == unix.EPERM {
		return false, nil
	}
	return err == nil, err
}

// notGiven is the error for an owner that the user may not give files to.
func notGiven(owner string) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPathDenied,
		"the user may not give files to %s; do the operation as that user, or use a profile with the capability CHOWN", owner)
	e.Field = "owner"
	return e
}

// ask makes the worker set the owner of an open file, and waits until it has done so.
func (g *giver) ask(fd, uid, gid int) error {
	give := &control.Give{UID: uint32(uid), GID: uint32(gid), Answer: true}
	if err := g.link.SendMessage(&control.FileReply{Give: give}, fd); err != nil {
		return err
	}
	kind, body, file, err := g.link.Receive()
	packet.Discard(file)
	if err != nil {
		return err
	}
	var given control.Given
	parts := packet.Collector{Limit: packet.MaxBody}
	if kind != packet.Message {
		return errors.New("the worker did not answer whether it has set the owner")
	}
	if _, err := parts.Add(kind, body, &given); err != nil {
		return err
	}
	if given.Error != nil {
		return given.Error
	}
	return nil
}

// request asks the worker to set the owner of an open file, and does not wait. If the worker cannot, it ends the
// operation.
func (g *giver) request(fd, uid, gid int) error {
	return g.link.SendMessage(&control.FileReply{Give: &control.Give{UID: uint32(uid), GID: uint32(gid)}}, fd)
}
