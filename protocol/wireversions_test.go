package protocol

import (
	"strings"
	"testing"
)

func TestAHostIsSupportedIfItSharesAVersionOfTheWire(t *testing.T) {
	for _, c := range []struct {
		name           string
		host           Host
		oldest, newest int
		want           string // a part of the refusal; "": supported
	}{
		{"an earlier worker with version 1", Host{}, 1, 1, ""},
		{"an earlier worker with later coordinators that still speak version 1", Host{}, 1, 3, ""},
		{"an earlier worker with coordinators that no longer speak version 1", Host{}, 2, 3,
			"its worker speaks version 1 of the wire, and the coordinator versions 2 to 3: upgrade the worker"},
		{"the same range", Host{Oldest: 2, Speaks: 3}, 2, 3, ""},
		{"the ranges meet at their ends", Host{Oldest: 3, Speaks: 5}, 1, 3, ""},
		{"the ranges meet at their other ends", Host{Oldest: 1, Speaks: 3}, 3, 5, ""},
		{"a later worker that no longer speaks version 1", Host{Oldest: 2, Speaks: 2}, 1, 1,
			"its worker speaks version 2 of the wire, and the coordinator version 1: upgrade the coordinators"},
		{"a worker that reports only its newest version", Host{Speaks: 2}, 1, 1, ""},
		{"a range that ends before it begins", Host{Oldest: 3, Speaks: 2}, 1, 9, "no range"},
	} {
		got := c.host.VersionRefusal(c.oldest, c.newest)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: the refusal is %q, want %q", c.name, got, c.want)
		}
	}
}
