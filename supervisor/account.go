package supervisor

import (
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// account is the user that a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary groups, without the exec's own
	name     string   // value of USER
	home     string   // value of HOME
}

// accounts looks up users in the container's current /etc/passwd and /etc/group. Numeric ids need neither.
type accounts struct {
	passwd, group *accountFile
	reserved      uint32 // group ids from here on are refused
}

func newAccounts(passwd, group string, reserved uint32) accounts {
	return accounts{passwd: &accountFile{path: passwd}, group: &accountFile{path: group}, reserved: reserved}
}

// resolve reads "name|uid[:group|gid]", as Docker reads a container's user. The error names what is unknown.
func (a accounts) resolve(spec string) (account, *protocol.Error) {
	user, group, grouped := strings.Cut(spec, ":")
	acct, found := a.user(user)
	if !found {
		return account{}, unknownUser("user %.80q is not in the sandbox's /etc/passwd", user)
	}
	if grouped {
		gid, found := a.gid(group)
		if !found {
			return account{}, unknownUser("group %.80q is not in the sandbox's /etc/group", group)
		}
		acct.gid, acct.groups = gid, nil
	} else {
		acct.groups = a.memberships(acct.name, acct.gid)
	}
	if len(acct.groups) > maxMemberships {
		return account{}, unknownUser(
			"user %.80q is in more than %d groups of the sandbox's /etc/group; name one group, as in \"user:group\"",
			user,
			maxMemberships,
		)
	}
	if acct.gid >= a.reserved {
		return account{}, unknownUser("group ids from %d upwards are reserved", a.reserved)
	}
	return acct, nil
}

func unknownUser(format string, args ...any) *protocol.Error {
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUserUnknown, format, args...)
	e.Field = "spec.user"
	return e
}

// user finds a passwd entry, name:password:uid:gid:gecos:home:shell. A uid without an entry is an account in group 0
// without a home.
func (a accounts) user(user string) (account, bool) {
	uid, numeric := id(user)
	var acct account
	found := false
	a.passwd.eachLine(func(fields []string) bool {
		if len(fields) < 6 || (fields[0] != user && !(numeric && fields[2] == user)) {
			return true
		}
		u, okUID := id(fields[2])
		g, okGID := id(fields[3])
		if !okUID || !okGID {
			return true
		}
		acct, found = account{uid: u, gid: g, name: fields[0], home: fields[5]}, true
		return false
	})
	if !found && numeric {
		acct, found = account{uid: uid, name: user}, true
	}
	if acct.home == "" {
		acct.home = "/"
	}
	return acct, found
}

func (a accounts) gid(group string) (uint32, bool) {
	if gid, numeric := id(group); numeric {
		return gid, true
	}
	var gid uint32
	found := false
	a.group.eachLine(func(fields []string) bool {
		if len(fields) >= 3 && fields[0] == group {
			gid, found = id(fields[2])
		}
		return !found
	})
	return gid, found
}

// maxMemberships limits how many groups of the sandbox's /etc/group a process gets. The kernel would allow 65,535
// besides the exec's own, but each search for the processes of an exec reads all groups of each process.
const maxMemberships = 4096

// memberships lists the groups that name a user as a member, except the primary one. It stops at one more than
// maxMemberships.
func (a accounts) memberships(user string, primary uint32) []uint32 {
	var gids []uint32
	a.group.eachLine(func(fields []string) bool {
		if len(fields) < 4 {
			return true
		}
		for member := range strings.SplitSeq(fields[3], ",") {
			gid, ok := id(fields[2])
			if member == user && ok && gid != primary && gid < a.reserved {
				gids = append(gids, gid)
				break
			}
		}
		return len(gids) <= maxMemberships
	})
	return gids
}

// id parses a numeric user or group id: 0 to 2³¹-1, as for Docker.
func id(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil
}
