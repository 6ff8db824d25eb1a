package jetstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// found is a stream as it is.
type found struct {
	config jetstream.StreamConfig
	bytes  int64
}

// plan is what has to be done so that the streams are as they should be.
type plan struct {
	create, update []jetstream.StreamConfig
	standard       map[string]bool // streams to be created whose size nobody named
	late           map[string]bool // streams to be updated where only a default limit is new
	problems       []string        // what is less safe than it was made, and how to mend it
}

// planned compares what is wanted with what is there. It changes nothing, and refuses what would
// weaken anything: would_weaken, or needs_migration for more replicas, with the field at fault.
// Deliberate is an operator's command to change settings, which may lower ages and sizes.
func planned(a Assets, there map[string]found, deliberate bool) (plan, error) {
	p := plan{standard: map[string]bool{}, late: map[string]bool{}}
	replicas, err := plannedReplicas(a.Replicas, there)
	if err != nil {
		return p, err
	}
	_, moving := there[streamMoving]
	for _, want := range a.assets() {
		old, exists := there[want.config.Name]
		if want.config.Name == protocol.StreamLogs && moving {
			p.problems = append(p.problems, "the move of "+protocol.StreamLogs+" to more replicas is not finished: run boxfleet storage grow again")
			continue
		}
		if !exists {
			created := want.config
			created.Replicas, created.PersistMode = replicas, persistMode(created.Name, replicas)
			p.standard[created.Name] = !want.sized()
			p.create = append(p.create, created)
			continue
		}
		if r := old.config.Replicas; r < replicas {
			p.problems = append(p.problems, fmt.Sprintf("%s has %d replica(s) where others have %d: run boxfleet storage grow --replicas %d", want.config.Name, r, replicas, replicas))
		}
		changed, late, err := want.changed(old, deliberate)
		if err != nil {
			return p, err
		}
		if changed != nil {
			p.late[changed.Name] = late
			p.update = append(p.update, *changed)
		}
	}
	return p, nil
}

// plannedReplicas is how many replicas new streams get: those of what is there.
func plannedReplicas(wanted int, there map[string]found) (int, error) {
	is := 0
	for _, f := range there {
		is = max(is, f.config.Replicas)
	}
	switch {
	case is == 0:
		return max(wanted, 1), nil
	case wanted == 0 || wanted == is:
		return is, nil
	case wanted < is:
		return 0, &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonWouldWeaken, Field: "replicas",
			Message: fmt.Sprintf("the streams have %d replicas and are not cut to %d: leave coordinator.replicas out, or set it to %d", is, wanted, is)}
	}
	return 0, &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonNeedsMigration, Field: "replicas",
		Message: fmt.Sprintf("the streams have %d replica(s), not %d: run boxfleet storage grow --replicas %d once, or leave coordinator.replicas out", is, wanted, wanted)}
}

// persistMode is async for output on one server: the log tells its offsets again, so it need not
// share the log's fsyncs. The server takes no async stream with replicas, and changes no mode.
func persistMode(name string, replicas int) jetstream.PersistModeType {
	if name == protocol.StreamLogs && replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

// sized says whether somebody named the size.
func (a *asset) sized() bool {
	for _, s := range a.settings {
		if s.late && s.wanted != 0 {
			return true
		}
	}
	return false
}

// changed is the configuration that an existing stream gets, nil where it is right already; late says
// that only a default limit is new.
func (a *asset) changed(old found, deliberate bool) (_ *jetstream.StreamConfig, late bool, err error) {
	c, want := old.config, a.config
	c.Metadata = maps.Clone(old.config.Metadata)
	differs := !sameText(c.Subjects, want.Subjects) || c.AllowDirect != want.AllowDirect || c.Discard != want.Discard ||
		c.AllowRollup != want.AllowRollup || !c.DenyDelete && want.DenyDelete || !c.DenyPurge && want.DenyPurge ||
		!sameRepublish(c.RePublish, want.RePublish) || !sameTransform(c.SubjectTransform, want.SubjectTransform) ||
		c.DiscardNewPerSubject != want.DiscardNewPerSubject || want.MaxMsgSize > 0 && c.MaxMsgSize > 0 && c.MaxMsgSize < want.MaxMsgSize
	c.Subjects, c.AllowDirect, c.Discard, c.AllowRollup = want.Subjects, want.AllowDirect, want.Discard, want.AllowRollup
	c.DenyDelete, c.DenyPurge = c.DenyDelete || want.DenyDelete, c.DenyPurge || want.DenyPurge
	c.RePublish, c.SubjectTransform, c.DiscardNewPerSubject = want.RePublish, want.SubjectTransform, want.DiscardNewPerSubject
	if want.MaxMsgSize > 0 && c.MaxMsgSize > 0 {
		c.MaxMsgSize = max(c.MaxMsgSize, want.MaxMsgSize)
	}
	late = !differs // a description is no reason to fail for
	if text := descriptionOf(c.Name, c.Description); text != c.Description {
		c.Description, differs = text, true
	}
	for _, s := range a.settings {
		value := s.value(&c)
		next, err := s.next(max(*value, 0), old.bytes, deliberate)
		if err != nil {
			return nil, false, err
		}
		if next == max(*value, 0) {
			continue
		}
		late = late && s.wanted == 0
		differs = true
		*value = next
	}
	if !differs {
		return nil, false, nil
	}
	return &c, late, nil
}

// next is the value that a setting gets where it is now is, 0 for no limit.
func (s setting) next(is, bytes int64, deliberate bool) (int64, error) {
	weaker := s.wanted != 0 && (is == 0 || s.wanted < is)
	switch {
	case s.wanted == 0 && s.free:
		return s.standard, nil
	case s.wanted == 0 && s.late && is == 0 && 2*bytes < s.standard:
		return s.standard, nil
	case s.wanted == 0 || s.wanted == is:
		return is, nil
	case s.free || !weaker:
		return s.wanted, nil
	case s.late && s.wanted < bytes && s.field != "log_max_bytes":
		return 0, s.refusal("%s are stored already, more than %s: delete some first, or keep the limit higher", formatBytes(bytes), s.format(s.wanted))
	case deliberate:
		return s.wanted, nil
	case is == 0 && s.late: // a first limit, with room below it
		return s.wanted, nil
	}
	return 0, s.refusal("it is %s, and %s would keep less: leave it out, or run boxfleet storage set %s %s",
		s.format(is), s.format(s.wanted), flagOf(s.field), s.format(s.wanted))
}

func (s setting) refusal(format string, args ...any) error {
	return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonWouldWeaken, Field: s.field, Message: fmt.Sprintf(format, args...)}
}

// flagOf is the flag of the command that changes a setting.
func flagOf(field string) string { return "--" + strings.ReplaceAll(field, "_", "-") }

// sameText compares lists whose order says nothing.
func sameText(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func sameRepublish(a, b *jetstream.RePublish) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func sameTransform(a, b *jetstream.SubjectTransformConfig) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
