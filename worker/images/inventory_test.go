package images

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Without its records, a worker would never remove the images that it brought to the host.
func TestAFullDiskKeepsTheRecordsOfImages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test mounts a file system: run it as root")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	v := newInventory(dir, slog.New(slog.DiscardHandler))
	v.records["kept"] = &record{ID: "sha256:1"}
	v.save()
	if err := os.WriteFile(filepath.Join(dir, "ballast"), bytes.Repeat([]byte("x"), 56<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		v.records[fmt.Sprintf("name-%d", i)] = &record{ID: "sha256:2"}
	}
	v.save()
	again := newInventory(dir, slog.New(slog.DiscardHandler))
	again.load()
	if again.records["kept"] == nil {
		content, err := os.ReadFile(v.file)
		t.Errorf("the full disk destroyed the records: their file has %d bytes; reading it: %v", len(content), err)
	}
}
