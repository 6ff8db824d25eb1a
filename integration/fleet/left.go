package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// noteTraces lists, before anything is deleted, the objects that must not exist afterwards.
func (f remains) noteTraces() map[string]traces {
	f.TB.Helper()
	before := map[string]traces{}
	f.eachHost(func(ctx context.Context, h *host, address string) (err error) {
		before[address], err = h.note(ctx)
		return err
	}, func(err error) { f.TB.Fatalf("inspect the engine before the clean-up: %v", err) })
	return before
}

// left lists what remains of the fleet, except processes.
func (f remains) left(before map[string]traces) []string {
	var left []string
	f.eachHost(func(ctx context.Context, h *host, address string) error {
		left = append(left, h.left(ctx, f.began, before[address])...)
		return nil
	}, func(err error) { left = append(left, "not known: "+err.Error()) })
	left = append(left, f.leftInDirectories()...)
	return append(left, f.leftInStore()...)
}

func (f remains) eachHost(do func(ctx context.Context, h *host, address string) error, failed func(error)) {
	ctx, cancel := context.WithTimeout(context.Background(), hostCallTimeout)
	defer cancel()
	for address := range f.engines {
		h, err := openHost(address, f.Conn.Deployment())
		if err == nil {
			err = do(ctx, h, address)
			h.Close()
		}
		if err != nil {
			failed(fmt.Errorf("engine %q: %w", address, err))
		}
	}
}

// stays matches the files in a worker's state directory that belong to the host and not to a sandbox. Paths are
// relative to the state directory and begin with <deployment>/<host>.
var stays = regexp.MustCompile(`^[^/]+/[^/]+/(lock|images\.json|supervisor-[0-9a-f]{16}|reserve/[a-z0-9-]+)$`)

// leftInDirectories lists the remaining files of sandboxes in the workers' state directories.
func (f remains) leftInDirectories() []string {
	var left []string
	seen := map[string]bool{}
	for _, p := range f.processes {
		dir := p.Role.StateDir
		if p.role != "worker" || seen[dir] {
			continue
		}
		seen[dir] = true
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				if os.IsNotExist(err) { // the worker has removed the file in the meantime
					return nil
				}
				return err
			}
			name, _ := filepath.Rel(dir, path)
			if kept := strings.Count(name, "/") < 2 || strings.Count(name, "/") == 2 &&
				slices.Contains([]string{"sandboxes", "reserve"}, filepath.Base(name)); entry.IsDir() && kept {
				return nil
			}
			if !entry.IsDir() && stays.MatchString(name) {
				return nil
			}
			left = append(left, fmt.Sprintf("%s of worker %s", name, p.Name))
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		})
		if err != nil {
			left = append(left, fmt.Sprintf("not known: %v", err))
		}
	}
	return left
}

// leftInStore returns a finding if an uploaded tree is kept longer than the deployment promises. A delete of the
// sandboxes that used a tree does not remove the tree: another sandbox may use the tree until it expires.
func (f remains) leftInStore() []string {
	if f.options.BlobMaxAge == 0 {
		return nil // the product's default, longer than any test
	}
	conn, err := f.NATS("leak check")
	if err != nil {
		return []string{"not known: " + err.Error()}
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hostCallTimeout)
	defer cancel()
	js, err := natsjs.New(conn)
	if err != nil {
		return []string{"not known: " + err.Error()}
	}
	stream, err := js.Stream(ctx, "OBJ_"+protocol.BucketBlobs)
	if err != nil {
		return []string{"not known: " + err.Error()}
	}
	state := stream.CachedInfo().State
	if age := time.Since(state.FirstTime); state.Msgs > 0 && age > f.options.BlobMaxAge+expirySlack {
		return []string{fmt.Sprintf("%d messages of uploaded trees, the oldest stored %s ago", state.Msgs,
			age.Round(time.Millisecond))}
	}
	return nil
}

// expirySlack is how late the NATS server may remove expired messages.
const expirySlack = 2 * time.Second

// leftRunning lists the fleet's processes that still run. A process belongs to the fleet if its arguments or its
// environment contain the fleet's directory, or if it sees a mount of something in that directory. The mounts show the
// supervisors, so leftRunning reads the mounts of all processes of the machine.
func (f remains) leftRunning() []string {
	deadline := time.Now().Add(2 * time.Second)
	for {
		left := processesOf([]byte(f.Dir))
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func processesOf(dir []byte) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{"not known: " + err.Error()}
	}
	var left []string
	looked := map[string]bool{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process with files that cannot be read has ended.
		proc := filepath.Join("/proc", entry.Name())
		arguments, _ := os.ReadFile(proc + "/cmdline")
		environment, _ := os.ReadFile(proc + "/environ")
		command := string(bytes.TrimSpace(bytes.ReplaceAll(arguments, []byte{0}, []byte{' '})))
		if pid != os.Getpid() && (bytes.Contains(arguments, dir) || bytes.Contains(environment, dir)) {
			left = append(left, fmt.Sprintf("process %d: %.200s", pid, command))
		}
		namespace, err := os.Readlink(proc + "/ns/mnt")
		if err != nil || looked[namespace] {
			continue
		}
		looked[namespace] = true
		mounts, _ := os.ReadFile(proc + "/mountinfo")
		for line := range bytes.Lines(mounts) {
			if bytes.Contains(line, dir) {
				left = append(left, fmt.Sprintf("mount seen by process %d (%.100s): %s", pid, command,
					bytes.TrimSpace(line)))
			}
		}
	}
	return left
}
