package worker

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

func testImages(t *testing.T, cfg Images) *images {
	t.Helper()
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	return newImages(&worker{cfg: Config{Images: cfg}, dir: t.TempDir(), log: slog.New(slog.DiscardHandler)})
}

func TestImagesGoBySizeAndTimeWithoutUse(t *testing.T) {
	m := testImages(t, Images{PrePull: []string{"pre"}})
	now := time.Now()
	record := func(id string, size protocol.Bytes, unused time.Duration) *imageRecord {
		return &imageRecord{ID: id, Size: size, UsedAt: now.Add(-unused)}
	}
	const pre = "docker.io/library/pre:latest"
	m.records = map[string]*imageRecord{
		"old-small": record("1", 10, 100*time.Hour), "new-large": record("2", 1000, time.Minute), "old-large": record("3", 1000, 2*time.Hour),
		"in-use": record("4", 5000, 100*time.Hour), "waited-for": record("5", 5000, 100*time.Hour), pre: record("6", 5000, 100*time.Hour),
	}
	release := m.hold("waited-for")
	used := map[string]bool{"4": true}
	if got, want := m.unused(used, now), []string{"old-large", "old-small", "new-large"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	release()
	if got := m.unused(used, now); got[len(got)-1] != "waited-for" {
		t.Errorf("what was just used does not go last: %v", got)
	}
}

func TestTheRecordOfImagesOutlivesTheWorker(t *testing.T) {
	m := testImages(t, Images{})
	m.mu.Lock()
	m.own("a", &imageRecord{ID: "1", Size: 5, Origin: protocol.ImagePulled})
	m.own("b", &imageRecord{ID: "2", Size: 5, Origin: protocol.ImageImported, File: "f"})
	m.own("a", &imageRecord{ID: "3", Size: 5, Origin: protocol.ImagePulled}) // a later pull moved the name
	m.mu.Unlock()
	again := testImages(t, Images{})
	again.w.dir = m.w.dir
	again.load()
	names := slices.Sorted(maps.Keys(again.records))
	if want := []string{"1", "a", "b"}; !slices.Equal(names, want) || again.records["a"].ID != "3" || again.records["1"].Origin != protocol.ImagePulled {
		t.Errorf("got %v: %+v", names, again.records)
	}
	if again.keep["b"] != protocol.ImageImported || again.keep["a"] != "" {
		t.Errorf("kept are %v", again.keep)
	}
	if err := os.WriteFile(filepath.Join(m.w.dir, "images.json"), []byte("{cut off"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := testImages(t, Images{})
	broken.w.dir = m.w.dir
	if broken.load(); len(broken.records) > 0 {
		t.Errorf("of a broken record: %v", broken.records)
	}
}

func TestTheSettingsOfImagesAreChecked(t *testing.T) {
	for field, cfg := range map[string]Images{
		"images.high_water": {HighWater: 101}, "images.low_water": {HighWater: 50, LowWater: 60}, "images.max_bytes": {MaxBytes: -1},
		"images.pull_stall": {PullStall: -1}, "images.pre_pull": {PrePull: []string{"NO IMAGE"}},
	} {
		if err := cfg.check(); protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	full := Images{HighWater: 60}
	if err := full.check(); err != nil || full.LowWater > 60 {
		t.Errorf("got %+v, %v", full, err)
	}
}

func TestTheWaterMarksAreOfTheEnginesFileSystem(t *testing.T) {
	m := testImages(t, Images{HighWater: 99, LowWater: 1})
	m.w.address = "unix:///run/docker.sock"
	m.w.info.RootDir = t.TempDir()
	used, ok := filesystemUse(m.w.info.RootDir)
	if !ok || used < 1 || used > 98 {
		t.Skipf("%d%% of the file system are used here", used)
	}
	if !m.over(used-1) || m.over(used) || m.over(99) || m.over(100) {
		t.Errorf("%d%% are used, and the marks say otherwise", used)
	}
	m.w.address = "tcp://elsewhere:2376" // whose file system is not this one
	if m.over(1) {
		t.Error("this machine's file system is taken for the engine's")
	}
	m.w.address = "unix:///run/docker.sock"
	m.cfg.MaxBytes = 10
	m.records["a"], m.records["b"] = &imageRecord{ID: "1", Size: 10}, &imageRecord{ID: "1", Size: 10}
	if m.over(100) {
		t.Error("an image with two names is counted twice")
	}
	if m.records["c"] = (&imageRecord{ID: "2", Size: 1}); !m.over(100) {
		t.Error("the images' own bound is not kept")
	}
}

func TestTheNamesThatAreToldAreBounded(t *testing.T) {
	names := func(n, size int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%0*d", size, n-i))
		}
		return all
	}
	for _, c := range []struct {
		names []string
		told  int
		cut   bool
	}{{nil, 0, false}, {names(3, 10), 3, false}, {names(maxTold, 10), maxTold, false}, {names(maxTold+1, 10), maxTold, true},
		{names(900, 300), maxNameBytes / 300, true}} {
		told, cut := boundedNames(c.names)
		if len(told) != c.told || cut != c.cut || !slices.IsSorted(told) {
			t.Errorf("of %d names %d are told, sorted %t, cut %t", len(c.names), len(told), slices.IsSorted(told), cut)
		}
		if c.cut && slices.Contains(told, c.names[len(c.names)-1]) {
			t.Error("the last one is told, the first are to be")
		}
	}
}
