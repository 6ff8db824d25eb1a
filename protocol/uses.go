package protocol

import (
	"slices"
	"time"
)

// Use is what one request id was used for in a sandbox. Its names are short, and the verb of an exec
// is left out: a busy sandbox stores many.
type Use struct {
	ID   string `json:"i"`
	Verb string `json:"v,omitempty"` // "" with an exec: [VerbExec]; "" without one: not known, of an older snapshot
	Exec string `json:"x,omitempty"` // of an exec or a cancel
	At   int64  `json:"t,omitempty"` // of the event that it caused, in seconds since 1970
}

// Is says whether the use is the verb's on the exec: then a request of the same id is the same one.
func (u *Use) Is(verb, exec string) bool {
	if u.Verb == "" && u.Exec == "" { // older snapshots knew the ids of these only
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

// Says names the use in words.
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

// Uses remembers requests, oldest first, in blocks that never change, so that clones of a state
// share them: remembering one more copies the last block and the list of blocks.
//
// It says nothing of a create, which is the sandbox's own request, nor of an exec whose id is its
// request's, which the ids of execs tell.
type Uses [][]Use

const (
	usesBlock   = 32
	keptUses    = 1000           // so many requests of a sandbox are remembered,
	keptUsesFor = 24 * time.Hour // and for so long, until another one comes
)

// find returns the use of a request id, nil where none is remembered.
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

// with returns the uses and one more, without what is too old or too much. Blocks are dropped whole,
// so up to a block more than promised is kept.
func (u Uses) with(use Use) Uses {
	first := 0
	for first < len(u)-1 && ((len(u)-first-2)*usesBlock >= keptUses || use.At-u[first][len(u[first])-1].At > int64(keptUsesFor/time.Second)) {
		first++
	}
	kept := slices.Clone(u[first:])
	if n := len(kept); n == 0 || len(kept[n-1]) >= usesBlock {
		return append(kept, []Use{use})
	}
	last := &kept[len(kept)-1]
	*last = append(slices.Clip(*last), use)
	return kept
}

// UseOf says what a request id was used for, nil where nothing is remembered of it.
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

// remember keeps what the request of an event was for.
func (s *State) remember(e *Event, verb, exec string) {
	if e.Request == "" || s.Uses.find(e.Request) != nil {
		return
	}
	if verb == VerbExec {
		verb = ""
	}
	s.Uses = s.Uses.with(Use{ID: e.Request, Verb: verb, Exec: exec, At: e.Time.Unix()})
}
