package disk

import "testing"

func TestTheLevelDependsOnTheFreeSpaceAndTheDisksSize(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for name, c := range map[string]struct {
		limits limits
		room   room
		lost   int64
		level  level
		inodes bool
	}{
		"much free space":       {limits{}, room{free: 100 * gib, size: 250 * gib}, 0, enough, false},
		"less than twice low":   {limits{}, room{free: 3 * gib, size: 250 * gib}, 0, near, false},
		"low in two seconds":    {limits{}, room{free: 5 * gib, size: 250 * gib}, 2 * gib, near, false},
		"low":                   {limits{}, room{free: gib + 1, size: 250 * gib}, 0, low, false},
		"less than half of low": {limits{}, room{free: gib - 1, size: 250 * gib}, 0, critical, false},
		"a small disk":          {limits{}, room{free: 300 * mib, size: gib}, 0, enough, false},
		"the operator's limit":  {limits{low: 10 * gib}, room{free: 9 * gib, size: 250 * gib}, 0, low, false},
		"few inodes": {
			limits{}, room{free: 100 * gib, size: 250 * gib, inodes: 1000, allInodes: 1_000_000}, 0, critical, true},
		"unlimited inodes": {limits{}, room{free: 100 * gib, size: 250 * gib}, 0, enough, false},
	} {
		if level, inodes := c.limits.level(c.room, c.lost); level != c.level || inodes != c.inodes {
			t.Errorf("%s: level %d, inodes %v; want level %d, inodes %v", name, level, inodes, c.level, c.inodes)
		}
	}
}
