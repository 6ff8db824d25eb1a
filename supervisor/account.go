package supervisor

import (
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// account is the user of a process.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary groups, without the group that marks the exec's processes
	name     string   // value of USER
	home     string   // value of HOME
}

// accounts looks up users in the container's current /etc/passwd and /etc/group. A numeric id need not be in these
// files.
type accounts struct {
	passwd, group *accountFile
	reserved      uint32 // this group id and all higher group ids are refused
}

func newAccounts(passwd, group string, reserved uint32) accounts {
	return accounts{passwd: &accountFile{path: passwd}, group: &accountFile{path: group}, reserved: reserved}
}

// resolve looks up a user given as "name|uid[:group|gid]". It interprets the text as Docker does for the user of a
// container. The error says which user or group is unknown.
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
		return account{}, unknownUser("group ids from %d upwards are reserved for the supervisor", a.reserved)
	}
	return acct, nil
}

func unknownUser(format string, args ...any) *protocol.Error {
	e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUserUnknown, format, args...)
	e.Field = "spec.user"
	return e
}

// user finds an entry of /etc/passwd. An entry has the format name:password:uid:gid:gecos:home:shell. A uid without an
// entry is an account in group 0 with the home directory /.
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

// maxMemberships limits how many groups a process gets from the sandbox's /etc/group. The kernel would allow 65,535
// groups, but each search for the processes of an exec reads all groups of every process.
const maxMemberships = 4096

// memberships lists the groups that have a user as a member, except the user's primary group. It stops at one group
// more than maxMemberships.
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

// id parses a numeric user or group id from 0 to 2³¹-1, the range that Docker accepts.
func id(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil
}
