package sdk_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Pages of output have the same bytes as the result of Wait, and pages of events the same events as Events. While an
// exec runs, its page does not say that the exec has ended.
func pagesEqualTheStreams(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	s, err := f.Client.Create(ctx, f.Spec(), sdk.WithID("pages"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(x *sdk.Exec, stream string, limit int, enough func(text []byte, page *protocol.OutputPage) bool) []byte {
		t.Helper()
		var text []byte
		for offset := int64(0); ctx.Err() == nil; {
			page, err := x.OutputPage(ctx, stream, offset, limit)
			if err != nil || page.Missing != 0 || page.Offset != offset {
				t.Fatalf("from %d: %+v, %v", offset, page, err)
			}
			if text = append(text, page.Data...); enough(text, page) {
				return text
			}
			if offset = page.Next; len(page.Data) == 0 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		t.Fatal(ctx.Err())
		return nil
	}
	whole := func(_ []byte, page *protocol.OutputPage) bool { return page.Ended && page.Next == page.End }
	for script, limit := range map[string]int{"echo short; echo err >&2": 3, "seq 1 30000; seq 1 9 >&2": 50_000} {
		x, err := s.Start(ctx, shell(script))
		if err != nil {
			t.Fatal(err)
		}
		r, err := x.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(x, sdk.Stdout, limit, whole); !bytes.Equal(got, r.Stdout) {
			t.Errorf("%s: %d bytes of stdout, want %d", script, len(got), len(r.Stdout))
		}
		if got := read(x, sdk.Stderr, limit, whole); !bytes.Equal(got, r.Stderr) {
			t.Errorf("%s: %q on stderr, want %q", script, got, r.Stderr)
		}
	}
	x, err := s.Start(ctx, shell("echo begun; exec sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	read(x, sdk.Stdout, 0, func(text []byte, page *protocol.OutputPage) bool {
		if page.Ended {
			t.Fatal("the page says that the exec has ended")
		}
		return string(text) == "begun\n"
	})
	if err := x.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	read(x, sdk.Stdout, 0, whole)
	var all []string
	for e, err := range f.Client.Sandbox("pages").Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(e.Kind))
	}
	var paged []string
	for from, last := uint64(0), uint64(1); from <= last; {
		page, end, err := s.EventsPage(ctx, from, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			paged = append(paged, string(e.Kind))
		}
		from, last = page.Next, end
	}
	if strings.Join(paged, " ") != strings.Join(all, " ") {
		t.Errorf("the pages hold %q, the stream %q", paged, all)
	}
	_, _, err = s.EventsPage(ctx, 9999, 0)
	wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd)
	_, err = s.LogsPage(ctx, sdk.Stdout, 0, 0)
	wantError(t, err, protocol.InvalidArgument, "")
}
