package main

import (
	"fmt"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// serviceRows returns the rows about the services of a sandbox.
func serviceRows(s *protocol.Sandbox) [][]any {
	names, required := s.Spec.Services()
	slices.Sort(names)
	var rows [][]any
	for _, name := range names {
		v, _ := s.Spec.Service(name)
		status := s.Services[name]
		text := fmt.Sprintf("%s, %s, image %s", name, status.State, v.Image)
		if required[name] {
			text += ", required"
		}
		if v.Profile == protocol.ProfileHardened {
			text += ", hardened"
		}
		if status.Reason != "" {
			text += ", " + status.Reason
		}
		rows = append(rows, []any{"service", text})
	}
	return rows
}
