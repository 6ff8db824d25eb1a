package images

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func testInventory(t *testing.T, dir string) *inventory {
	t.Helper()
	return newInventory(dir, slog.New(slog.DiscardHandler))
}

func TestLargeImagesAndImagesUnusedForLongAreRemovedFirst(t *testing.T) {
	cfg := Config{PrePull: []string{"pre"}}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	v := New(Options{Config: cfg, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}).inventory
	now := time.Now()
	unused := func(id string, size protocol.Bytes, since time.Duration) *record {
		return &record{ID: id, Size: size, UsedAt: now.Add(-since)}
	}
	const pre = "docker.io/library/pre:latest"
	v.records = map[string]*record{
		"old-small": unused("1", 10, 100*time.Hour),
		"new-large": unused("2", 1000, time.Minute),
		"old-large": unused("3", 1000, 2*time.Hour),
		"in-use":    unused("4", 5000, 100*time.Hour),
		"held":      unused("5", 5000, 100*time.Hour),
		pre:         unused("6", 5000, 100*time.Hour),
	}
	release := v.hold("held")
	used := map[string]bool{"4": true}
	if got, want := v.unused(used, now), []string{"old-large", "old-small", "new-large"}; !slices.Equal(got, want) {
		t.Errorf("the images would be removed in the order %v, want %v", got, want)
	}
	release()
	if got := v.unused(used, now); got[len(got)-1] != "held" {
		t.Errorf("the image that was used last is not removed last: %v", got)
	}
}

func TestTheRecordOfImagesSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	v := testInventory(t, dir)
	v.put("a", &record{ID: "1", Size: 5, Origin: protocol.ImagePulled})
	v.put("b", &record{ID: "2", Size: 5, Origin: protocol.ImageImported, File: "f"})
	v.put("a", &record{ID: "3", Size: 5, Origin: protocol.ImagePulled}) // a later pull gave the name to another image
	restarted := testInventory(t, dir)
	restarted.load()
	names := slices.Sorted(maps.Keys(restarted.records))
	if want := []string{"1", "a", "b"}; !slices.Equal(names, want) || restarted.records["a"].ID != "3" ||
		restarted.records["1"].Origin != protocol.ImagePulled {
		t.Errorf("after a restart, the recorded names are %v, want %v; the records are %+v", names, want,
			restarted.records)
	}
	if restarted.pins["b"] != protocol.ImageImported || restarted.pins["a"] != "" {
		t.Errorf("after a restart, the pinned names are %v, want only the import b", restarted.pins)
	}
	if err := os.WriteFile(filepath.Join(dir, "images.json"), []byte("{cut off"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := testInventory(t, dir)
	if broken.load(); len(broken.records) > 0 {
		t.Errorf("a broken file gave the records %v, want none", broken.records)
	}
}

func TestInvalidImageSettingsAreRefused(t *testing.T) {
	for field, cfg := range map[string]Config{
		"images.high_water": {HighWater: 101}, "images.low_water": {HighWater: 50, LowWater: 60},
		"images.max_bytes": {MaxBytes: -1}, "images.pull_stall": {PullStall: -1},
		"images.pre_pull": {PrePull: []string{"NO IMAGE"}},
	} {
		if err := cfg.Check(); protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != field {
			t.Errorf("an invalid %s: got %v, want invalid_argument for this field", field, err)
		}
	}
	low := Config{HighWater: 60}
	if err := low.Check(); err != nil || low.LowWater > 60 {
		t.Errorf("with high_water 60, low_water became %d, and the error is %v; want at most 60", low.LowWater, err)
	}
}

func TestTheWaterMarksApplyToTheEnginesFileSystem(t *testing.T) {
	dir := t.TempDir()
	v := testInventory(t, dir)
	sweeper := func(address string) *sweeper {
		return &sweeper{remover: &remover{inventory: v}, cfg: Config{HighWater: 99, LowWater: 1},
			dataDir: localDataDir(address, dir)}
	}
	local := sweeper("unix:///run/docker.sock")
	used, ok := filesystemUse(dir)
	if !ok || used < 1 || used > 98 {
		t.Skipf("the file system of the test's directory is %d%% full; the test needs 1 to 98%%", used)
	}
	if !local.over(used-1) || local.over(used) || local.over(99) || local.over(100) {
		t.Errorf("the file system is %d%% full, but a water mark of %d%% is not exceeded, or a higher one is", used, used-1)
	}
	if sweeper("tcp://elsewhere:2376").over(1) {
		t.Error("this machine's file system was checked for an engine on another machine")
	}
	local.cfg.MaxBytes = 10
	v.records["a"], v.records["b"] = &record{ID: "1", Size: 10}, &record{ID: "1", Size: 10}
	if local.over(100) {
		t.Error("an image with two names counts twice towards max_bytes")
	}
	if v.records["c"] = (&record{ID: "2", Size: 1}); !local.over(100) {
		t.Error("the images exceed max_bytes, but no image would be removed")
	}
}

func TestAReportHasALimitedNumberOfNames(t *testing.T) {
	names := func(n, size int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%0*d", size, n-i))
		}
		return all
	}
	for _, c := range []struct {
		names    []string
		reported int
		cut      bool
	}{{nil, 0, false}, {names(3, 10), 3, false}, {names(maxReported, 10), maxReported, false},
		{names(maxReported+1, 10), maxReported, true}, {names(900, 300), maxNameBytes / 300, true}} {
		reported, cut := limitNames(c.names)
		if len(reported) != c.reported || cut != c.cut || !slices.IsSorted(reported) {
			t.Errorf("%d of %d names are reported, sorted = %t, cut = %t", len(reported), len(c.names),
				slices.IsSorted(reported), cut)
		}
		if c.cut && slices.Contains(reported, c.names[len(c.names)-1]) {
			t.Error("the last name is reported, although the first ones have priority")
		}
	}
}
