package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// MaxPlacement is the maximum number of placement constraints in a spec.
const MaxPlacement = 32

// Constraint is one condition on the labels of a host.
type Constraint struct {
	Key    string
	Values []string // one of these must match
	Not    bool     // invert: none of Values may match
}

// ParseConstraint parses "KEY=VALUE", "KEY!=VALUE" or "KEY in (VALUE, VALUE)". An error describes the expected
// form.
func ParseConstraint(text string) (Constraint, error) {
	wrong := fmt.Errorf("must be KEY=VALUE, KEY!=VALUE or \"KEY in (VALUE, VALUE)\", got %.80q", text)
	c := Constraint{}
	key, list, in := strings.Cut(text, " in ")
	if in && !strings.Contains(key, "=") { // otherwise " in " is part of a value
		list = strings.TrimSpace(list)
		inner, opened := strings.CutPrefix(list, "(")
		inner, closed := strings.CutSuffix(inner, ")")
		if !opened || !closed {
			return c, wrong
		}
		c.Key = strings.TrimSpace(key)
		for value := range strings.SplitSeq(inner, ",") {
			c.Values = append(c.Values, strings.TrimSpace(value))
		}
		if slices.Contains(c.Values, "") {
			return c, wrong
		}
	} else {
		key, value, found := strings.Cut(text, "=")
		if !found {
			return c, wrong
		}
		if _, second, list := strings.Cut(value, ","); list && strings.Contains(second, "=") {
			return c, fmt.Errorf("must be a single constraint; list others as separate entries, got %.80q", text)
		}
		key, c.Not = strings.CutSuffix(key, "!")
		c.Key, c.Values = strings.TrimSpace(key), []string{strings.TrimSpace(value)}
	}
	if len(c.Key) > MaxLabelKey || !labelPattern.MatchString(c.Key) {
		return c, wrong
	}
	for _, value := range c.Values {
		if len(value) > MaxLabelValue || strings.ContainsAny(value, "\x00\n\r()") {
			return c, wrong
		}
	}
	return c, nil
}

// Met reports whether a host with these labels meets the constraint. A host without the label fails KEY=VALUE
// and meets KEY!=VALUE.
func (c Constraint) Met(labels map[string]string) bool {
	value, there := labels[c.Key]
	return (there && slices.Contains(c.Values, value)) != c.Not
}

// Unmet explains why a host with these labels does not meet the constraint; "" if it does.
func (c Constraint) Unmet(labels map[string]string) string {
	if c.Met(labels) {
		return ""
	}
	wanted := strings.Join(c.Values, " or ")
	if c.Not {
		wanted = "anything except " + wanted
	}
	value, there := labels[c.Key]
	if !there {
		return fmt.Sprintf("label %s is not set, wanted %s", c.Key, wanted)
	}
	return fmt.Sprintf("label %s is %s, wanted %s", c.Key, value, wanted)
}

func (s *SandboxSpec) validatePlacement() error {
	if len(s.Placement) > MaxPlacement {
		return Invalid("spec.placement", "has %d entries, at most %d are allowed", len(s.Placement), MaxPlacement)
	}
	for i, text := range s.Placement {
		if _, err := ParseConstraint(text); err != nil {
			return Invalid(fmt.Sprintf("spec.placement[%d]", i), "%v", err)
		}
	}
	return nil
}

// ValidateHostLabels checks the labels of a host. Errors: invalid_argument below the given field.
func ValidateHostLabels(field string, labels map[string]string) error {
	return validateLabels(field, labels)
}
