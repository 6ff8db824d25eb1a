package coordinator

import (
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// idIndex holds the generated ids of a set of sandboxes by tenant, each tenant's ids in order. It finds the ids with a
// given prefix without a scan. The zero value is empty.
type idIndex struct{ tenants map[string]*sortedIDs }

func (x *idIndex) add(k key) {
	if !protocol.IsGeneratedID(k.ID) {
		return
	}
	if x.tenants == nil {
		x.tenants = map[string]*sortedIDs{}
	}
	ids := x.tenants[k.Tenant]
	if ids == nil {
		ids = &sortedIDs{}
		x.tenants[k.Tenant] = ids
	}
	ids.add(k.ID)
}

func (x *idIndex) remove(k key) {
	if ids := x.tenants[k.Tenant]; ids != nil && ids.remove(k.ID) && len(ids.parts) == 0 {
		delete(x.tenants, k.Tenant)
	}
}

// withPrefix lists at most limit ids of a tenant that begin with a prefix, in order.
func (x *idIndex) withPrefix(tenant, prefix string, limit int) []string {
	if ids := x.tenants[tenant]; ids != nil {
		return ids.withPrefix(prefix, limit)
	}
	return nil
}

// sortedIDs is a sorted set of ids. It is split into parts of 1 to maxPart ids, so that an insertion moves only the ids
// of one part.
type sortedIDs struct{ parts [][]string }

const maxPart = 512

// part returns the index of the part to which an id belongs, even if the set does not have the id: the last part whose
// first id is not greater than the given id, or else part 0.
func (s *sortedIDs) part(id string) int {
	i, found := slices.BinarySearchFunc(s.parts, id,
		func(part []string, id string) int { return strings.Compare(part[0], id) })
	if !found && i > 0 {
		i--
	}
	return i
}

func (s *sortedIDs) add(id string) {
	if len(s.parts) == 0 {
		s.parts = [][]string{{id}}
		return
	}
	i := s.part(id)
	part := s.parts[i]
	at, found := slices.BinarySearch(part, id)
	switch {
	case found:
		return
	case len(part) < maxPart:
		s.parts[i] = slices.Insert(part, at, id)
		return
	case at == maxPart: // generated ids mostly arrive in order, so begin a new part and do not split the full part
		s.parts = slices.Insert(s.parts, i+1, []string{id})
		return
	}
	half := maxPart / 2
	s.parts = slices.Insert(s.parts, i+1, slices.Clone(part[half:]))
	s.parts[i] = slices.Clip(part[:half])
	s.add(id)
}

func (s *sortedIDs) remove(id string) bool {
	if len(s.parts) == 0 {
		return false
	}
	i := s.part(id)
	at, found := slices.BinarySearch(s.parts[i], id)
	if !found {
		return false
	}
	if s.parts[i] = slices.Delete(s.parts[i], at, at+1); len(s.parts[i]) == 0 {
		s.parts = slices.Delete(s.parts, i, i+1)
	}
	return true
}

func (s *sortedIDs) withPrefix(prefix string, limit int) (found []string) {
	if len(s.parts) == 0 {
		return nil
	}
	for i := s.part(prefix); i < len(s.parts); i++ {
		from, _ := slices.BinarySearch(s.parts[i], prefix)
		for _, id := range s.parts[i][from:] {
			if !strings.HasPrefix(id, prefix) || len(found) == limit {
				return found
			}
			found = append(found, id)
		}
	}
	return found
}
