package jetstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// found is the current state of a stream.
type found struct {
	config jetstream.StreamConfig
	bytes  int64
}

// plan lists the changes that bring the streams to their wanted configuration.
type plan struct {
	create, update []jetstream.StreamConfig
	standard       map[string]bool // streams to create with the default size
	late           map[string]bool // streams whose only update is a new default limit
	problems       []string        // configurations that are less safe than intended, with the remedy
}

// planned compares the wanted configuration with the current one. It changes nothing, and refuses everything that would
// weaken the current configuration. If deliberate is true, an operator changes settings, and ages and sizes may become
// lower. Errors: failed_precondition with the field at fault and with reason would_weaken, or needs_migration if more
// replicas are wanted.
func planned(a Assets, existing map[string]found, deliberate bool) (plan, error) {
	p := plan{standard: map[string]bool{}, late: map[string]bool{}}
	replicas, err := plannedReplicas(a.Replicas, existing)
	if err != nil {
		return p, err
	}
	_, moving := existing[streamMoving]
	for _, want := range a.assets() {
		old, exists := existing[want.config.Name]
		if want.config.Name == protocol.StreamLogs && moving {
			p.problems = append(p.problems, "the move of the stream "+protocol.StreamLogs+
				" to more replicas is not finished: run boxfleet storage grow again")
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
			p.problems = append(p.problems, fmt.Sprintf(
				"%s has %d replica(s), but other streams have %d: run boxfleet storage grow --replicas %d",
				want.config.Name, r, replicas, replicas))
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

// plannedReplicas returns how many replicas new streams get: as many as the existing streams have.
func plannedReplicas(wanted int, existing map[string]found) (int, error) {
	current := 0
	for _, f := range existing {
		current = max(current, f.config.Replicas)
	}
	switch {
	case current == 0:
		return max(wanted, 1), nil
	case wanted == 0 || wanted == current:
		return current, nil
	case wanted < current:
		return 0, &protocol.Error{
			Code:   protocol.FailedPrecondition,
			Reason: protocol.ReasonWouldWeaken,
			Field:  "replicas",
			Message: fmt.Sprintf("the streams have %d replicas and are not reduced to %d: "+
				"leave coordinator.replicas out, or set it to %d", current, wanted, current),
		}
	}
	return 0, &protocol.Error{
		Code:   protocol.FailedPrecondition,
		Reason: protocol.ReasonNeedsMigration,
		Field:  "replicas",
		Message: fmt.Sprintf("the streams have %d replica(s), not %d: "+
			"run boxfleet storage grow --replicas %d once, or leave coordinator.replicas out", current, wanted, wanted),
	}
}

// persistMode returns the persist mode of a stream. The mode is async for output on a single server: workers publish
// lost output again, so output, unlike events, need not wait for the disk. The server allows no replicas for async
// streams and never changes a stream's mode.
func persistMode(name string, replicas int) jetstream.PersistModeType {
	if name == protocol.StreamLogs && replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

// sized reports whether the configuration sets the stream's size limit.
func (a *asset) sized() bool {
	for _, s := range a.settings {
		if s.late && s.wanted != 0 {
			return true
		}
	}
	return false
}

// changed returns the new configuration of an existing stream, or nil if the stream needs no change. late is true if
// the only change is a new default limit.
func (a *asset) changed(old found, deliberate bool) (_ *jetstream.StreamConfig, late bool, err error) {
	c, want := old.config, a.config
	c.Metadata = maps.Clone(old.config.Metadata)
	differs := !sameText(c.Subjects, want.Subjects) || c.AllowDirect != want.AllowDirect || c.Discard != want.Discard ||
		c.AllowRollup != want.AllowRollup || !c.DenyDelete && want.DenyDelete || !c.DenyPurge && want.DenyPurge ||
		!sameRepublish(c.RePublish, want.RePublish) || !sameTransform(c.SubjectTransform, want.SubjectTransform) ||
		c.DiscardNewPerSubject != want.DiscardNewPerSubject ||
		want.MaxMsgSize > 0 && c.MaxMsgSize > 0 && c.MaxMsgSize < want.MaxMsgSize
	c.Subjects, c.AllowDirect = want.Subjects, want.AllowDirect
	c.Discard, c.AllowRollup = want.Discard, want.AllowRollup
	c.DenyDelete, c.DenyPurge = c.DenyDelete || want.DenyDelete, c.DenyPurge || want.DenyPurge
	c.RePublish, c.SubjectTransform = want.RePublish, want.SubjectTransform
	c.DiscardNewPerSubject = want.DiscardNewPerSubject
	if want.MaxMsgSize > 0 && c.MaxMsgSize > 0 {
		c.MaxMsgSize = max(c.MaxMsgSize, want.MaxMsgSize)
	}
	late = !differs // an update of the description alone must not make provisioning fail
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

// next returns the new value of a setting. current is the setting's value now; 0 means no limit. bytes is the stream's
// size.
func (s setting) next(current, bytes int64, deliberate bool) (int64, error) {
	weaker := s.wanted != 0 && (current == 0 || s.wanted < current)
	switch {
	case s.wanted == 0 && s.free:
		return s.standard, nil
	case s.wanted == 0 && s.late && current == 0 && 2*bytes < s.standard:
		return s.standard, nil
	case s.wanted == 0 || s.wanted == current:
		return current, nil
	case s.free || !weaker:
		return s.wanted, nil
	case s.late && s.wanted < bytes && s.field != "log_max_bytes":
		return 0, s.refusal("%s are stored already, more than %s: delete some data first, or raise the limit",
			formatBytes(bytes), s.format(s.wanted))
	case deliberate:
		return s.wanted, nil
	case current == 0 && s.late: // the stream had no limit, and is smaller than the wanted limit
		return s.wanted, nil
	}
	return 0, s.refusal(
		"the current value is %s, and %s would store less: leave the setting out, or run boxfleet storage set %s %s",
		s.format(current), s.format(s.wanted), flagOf(s.field), s.format(s.wanted))
}

func (s setting) refusal(format string, args ...any) error {
	return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonWouldWeaken, Field: s.field,
		Message: fmt.Sprintf(format, args...)}
}

// flagOf returns the flag of `boxfleet storage set` for a setting.
func flagOf(field string) string { return "--" + strings.ReplaceAll(field, "_", "-") }

// sameText compares lists whose order does not matter.
func sameText(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func sameRepublish(a, b *jetstream.RePublish) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func sameTransform(a, b *jetstream.SubjectTransformConfig) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
