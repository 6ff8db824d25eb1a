package integration

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestAServiceWithOccasionalFailuresHasNotFailed uses services that exit or are unhealthy too rarely to count as
// failed. There is one service for each limit: for the crash guard, for the crash window, and for the retries of the
// health test.
func TestAServiceWithOccasionalFailuresHasNotFailed(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{CrashWindow: 10 * time.Second, CrashGuard: 2 * time.Second})
	ctx := f.Context(2 * time.Minute)
	spec := withServices(f, services{
		// This service exits again and again, each time after it has run for longer than the crash guard.
		"slow": small("echo x >>/tmp/runs; sleep 2.5; exit 1"),
		// This service exits once, when a file tells it to, and is restarted within the window.
		"once": small("echo x >>/tmp/runs; while ! [ -e /tmp/end ]; do sleep 0.05; done; rm /tmp/end; exit 1"),
		// In total, this service fails more tests than may fail in a row. But it passes one test after each failure.
		"sick": withCheck(small("exec sleep 1000"),
			"if [ -e /tmp/sick ]; then rm -f /tmp/passed; rm /tmp/sick; exit 1; fi; touch /tmp/passed"),
	}, nil)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "once", "touch", "/tmp/end")
	for range spec.RequiredServices["sick"].Healthcheck.Retries + 1 {
		printedBy(t, ctx, s, "sick", "sh", "-c",
			"touch /tmp/sick; while [ -e /tmp/sick ] || ! [ -e /tmp/passed ]; do sleep 0.05; done")
	}
	for name, runs := range map[string]int{"once": 2, "slow": 4} {
		f.Eventually(time.Minute, name+" was restarted", func() error {
			n, _ := strconv.Atoi(printedBy(t, ctx, s, name, "sh", "-c", "wc -l </tmp/runs"))
			if n < runs {
				time.Sleep(200 * time.Millisecond) // keeps the number of failed execs in the history small
				return fmt.Errorf("%d times", n)
			}
			return nil
		})
	}
	h := f.History("s")
	for _, name := range []string{"slow", "once", "sick"} {
		if got := serviceEvents(h, name); !slices.Equal(got, []string{string(protocol.ServiceReady)}) {
			t.Errorf("the history of %s has %q", name, got)
		}
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f, w)
	f.Judge()
}

// The service needs about fifty health tests until one passes.
func TestAServiceMayNeedManyHealthTests(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := withCheck(small("exec sleep 1000"), "echo x >>/tmp/tests; [ $(wc -l </tmp/tests) -ge 50 ]")
	v.Healthcheck.Retries = 100
	s, err := f.Client.Create(ctx, withServices(f, services{"slow": v}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Judge()
}

// The service needs a while to become healthy again after a restart.
func TestAServiceHasItsStartPeriodAtEachStart(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	v := withCheck(small("[ -e /tmp/ran ] && sleep 3; touch /tmp/ran /tmp/up; until [ -e /tmp/end ]; do sleep 0.05; "+
		"done; rm /tmp/end /tmp/up; exit 1"), "[ -e /tmp/up ]")
	v.Healthcheck.Retries, v.Healthcheck.StartPeriod = 2, protocol.Duration(20*time.Second)
	s, err := f.Client.Create(ctx, withServices(f, services{"v": v}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	printedBy(t, ctx, s, "v", "sh", "-c",
		"touch /tmp/end; while [ -e /tmp/end ]; do sleep 0.05; done; until [ -e /tmp/up ]; do sleep 0.1; done")
	if got := serviceEvents(f.History("s"), "v"); !slices.Equal(got, []string{string(protocol.ServiceReady)}) {
		t.Errorf("its history has %q", got)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Judge()
}
