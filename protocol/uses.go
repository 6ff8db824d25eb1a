package protocol

import (
	"slices"
	"time"
)

// Use records what one request id was used for in a sandbox. Field names are short, and the verb of an exec is omitted,
// because a busy sandbox stores many uses.
type Use struct {
	ID   string `json:"i"`
	Verb string `json:"v,omitempty"` // empty: VerbExec if Exec is set; otherwise unknown, from an older snapshot
	Exec string `json:"x,omitempty"` // id of the exec, for an exec or a cancel
	At   int64  `json:"t,omitempty"` // time of the resulting event, Unix seconds
}

// Is reports whether the use is this verb on this exec. If so, a request with the same id is a repeat.
func (u *Use) Is(verb, exec string) bool {
	if u.Verb == "" && u.Exec == "" { // an older snapshot stored only the id
		return verb == VerbStop || verb == VerbResume || verb == VerbExtend || verb == VerbDelete
	}
	return u.verb() == verb && u.Exec == exec
}

func (u *Use) verb() string {
	if u.Verb == "" && u.Exec != "" {
		return VerbExec
	}
	return u.Verb
}

// Says describes the use in words.
func (u *Use) Says() string {
	switch verb := u.verb(); {
	case verb == "":
		return "another request"
	case u.Exec != "":
		return "the " + verb + " of " + u.Exec
	default:
		return "a " + verb
	}
}

// Uses stores request uses, oldest first, in blocks that never change, so that clones of a state share them.
// Adding a use copies only the last block and the list of blocks.
//
// Uses omits creates, whose request id is in Sandbox.Request. It also omits execs whose id equals their
// request's id, because State.Execs has them.
type Uses [][]Use

const (
	usesBlock   = 32
	keptUses    = 1000           // maximum number of uses per sandbox
	keptUsesFor = 24 * time.Hour // older uses are dropped when another use is added
)

// find returns the use of a request id, or nil.
func (u Uses) find(id string) *Use {
	for b := len(u) - 1; b >= 0; b-- {
		for i := range u[b] {
			if u[b][i].ID == id {
				return &u[b][i]
			}
		}
	}
	return nil
}

// The method "with" returns a copy of the uses with one more use, and without old uses beyond the limits. It drops only
// whole blocks, so up to one block more than keptUses may remain.
func (u Uses) with(use Use) Uses {
	first := 0
	for ; first < len(u)-1; first++ {
		tooMany := (len(u)-first-2)*usesBlock >= keptUses
		tooOld := use.At-u[first][len(u[first])-1].At > int64(keptUsesFor/time.Second)
		if !tooMany && !tooOld {
			break
		}
	}
	kept := slices.Clone(u[first:])
	if n := len(kept); n == 0 || len(kept[n-1]) >= usesBlock {
		return append(kept, []Use{use})
	}
	last := &kept[len(kept)-1]
	*last = append(slices.Clip(*last), use)
	return kept
}

// UseOf returns what a request id was used for, or nil if it is unknown.
func (s *State) UseOf(request string) *Use {
	switch {
	case request == "":
		return nil
	case s.Sandbox.Request == request:
		return &Use{ID: request, Verb: VerbCreate, At: s.Sandbox.CreatedAt.Unix()}
	}
	if x := s.Execs[request]; x != nil && x.Request == request {
		return &Use{ID: request, Exec: x.ID, At: x.AcceptedAt.Unix()}
	}
	if u := s.Uses.find(request); u != nil {
		return u
	}
	if slices.Contains(s.Requests, request) {
		return &Use{ID: request}
	}
	return nil
}

// remember records the use of the event's request, unless it is recorded already.
func (s *State) remember(e *Event, verb, exec string) {
	if e.Request == "" || s.Uses.find(e.Request) != nil {
		return
	}
	if verb == VerbExec {
		verb = ""
	}
	s.Uses = s.Uses.with(Use{ID: e.Request, Verb: verb, Exec: exec, At: e.Time.Unix()})
}
