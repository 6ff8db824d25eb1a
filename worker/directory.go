package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// directory is where a sandbox of one generation lives on the host, below the worker's directory:
//
//	<tenant>.<sandbox>.<generation>/
//	    key       authenticates the supervisor's exit records; the container never sees it
//	    defaults  user and directory of execs that name none, from the spec and the image
//	    bindings  what of the host is mounted; see binding
//	    mounts/   the names by which the Engine knows it
//	    shadow/   copies of tools' directories that cannot be mounted as they are
//	    ctl/      bind-mounted read-only; holds the worker's socket
//	    etc/      its files are bind-mounted read-only, in place of the engine's
//	    run/      output and exit records; the supervisor writes them, and what is in them is the container's word
//	    services/<name>/
//	              the same again for a service's container
//	        output
//	              how much it had printed on other hosts
type directory struct {
	key
	generation uint64
	path       string
}

func (w *worker) sandboxesDir() string { return filepath.Join(w.dir, "sandboxes") }

func (w *worker) directory(k key, generation uint64) directory {
	// Ids have no dot, so no two sandboxes share a name.
	name := fmt.Sprintf("%s.%s.%d", k.Tenant, k.ID, generation)
	return directory{k, generation, filepath.Join(w.sandboxesDir(), name)}
}

// sandboxDirs lists the directories that are there.
func (w *worker) sandboxDirs() ([]directory, error) {
	entries, err := os.ReadDir(w.sandboxesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, hostError(err, "list sandboxes")
	}
	var dirs []directory
	for _, e := range entries {
		parts := strings.Split(e.Name(), ".")
		if len(parts) != 3 {
			continue
		}
		g, err := strconv.ParseUint(parts[2], 10, 64)
		if err != nil || protocol.ValidateID("", parts[0]) != nil || protocol.ValidateID("", parts[1]) != nil {
			continue
		}
		dirs = append(dirs, w.directory(key{Tenant: parts[0], ID: parts[1]}, g))
	}
	return dirs, nil
}

// directory is where a generation of the sandbox lives: where its container says, which a worker with
// another state directory made, or where this worker makes it.
func (s *sandbox) directory(generation uint64) directory {
	d := s.w.directory(s.key, generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	if filepath.IsAbs(s.home) && filepath.Base(s.home) == filepath.Base(d.path) {
		d.path = filepath.Clean(s.home)
	}
	return d
}

// hasDirectory says whether anything of a sandbox is in the worker's directory. A directory is made
// before anything else of its sandbox, and removed last.
func (w *worker) hasDirectory(k key) (bool, error) {
	dirs, err := w.sandboxDirs()
	return slices.ContainsFunc(dirs, func(d directory) bool { return d.key == k }), err
}

// home is the sandbox's own directory, that of a service's too.
func (d directory) home() string {
	if services := filepath.Dir(d.path); filepath.Base(services) == "services" {
		return filepath.Dir(services)
	}
	return d.path
}

// service is where a service of the sandbox lives.
func (d directory) service(name string) directory {
	return directory{d.key, d.generation, filepath.Join(d.path, "services", name)}
}

func (d directory) ctl() string { return filepath.Join(d.path, "ctl") }
func (d directory) run() string { return filepath.Join(d.path, "run") }

// make makes the directory, or completes one that a crash left half made, and returns its key.
func (d directory) make() ([]byte, error) {
	for _, dir := range []string{d.path, d.ctl(), d.run()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, hostError(err, "make a sandbox's directory")
		}
	}
	if secret, err := d.secret(); err == nil {
		return secret, nil
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	tmp := filepath.Join(d.path, "key.tmp")
	if err := errors.Join(os.WriteFile(tmp, secret, 0o600), os.Rename(tmp, filepath.Join(d.path, "key"))); err != nil {
		return nil, hostError(err, "make a sandbox's key")
	}
	return secret, nil
}

// secret reads the key of a directory that is whole.
func (d directory) secret() ([]byte, error) {
	secret, err := os.ReadFile(filepath.Join(d.path, "key"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // descriptors may have run out
		return nil, protocol.Errorf(protocol.Unavailable, "", "read the sandbox's key: %v", err)
	}
	if err != nil || len(secret) != 32 {
		return nil, protocol.Errorf(protocol.NotFound, "", "the sandbox has no key: %v", err)
	}
	return secret, nil
}

// defaults are what the image adds to a spec, kept because the image's name may mean another image
// later.
type defaults struct {
	User    string   `json:"user,omitempty"`
	Cwd     string   `json:"cwd,omitempty"`
	Command []string `json:"command,omitempty"` // of a service

	Volumes     []string              `json:"volumes,omitempty"`     // of the image, see volumesOf
	StopSignal  int                   `json:"stop_signal,omitempty"` // that the container's own command ends by; 0: TERM
	Healthcheck *protocol.Healthcheck `json:"healthcheck,omitempty"` // of a service
}

func (d directory) saveDefaults(v defaults) error {
	if err := os.WriteFile(filepath.Join(d.path, "defaults"), protocol.Encode(&v), 0o600); err != nil {
		return hostError(err, "save a sandbox's defaults")
	}
	return nil
}

func (d directory) defaults() (v defaults, err error) {
	data, err := os.ReadFile(filepath.Join(d.path, "defaults"))
	if err != nil {
		return v, hostError(err, "read a sandbox's defaults")
	}
	return v, protocol.Decode(data, &v)
}

// earlierOutput is how much of its two streams a container's command had printed when it came to this host: as was
// noted before any of it was published from here, or else so much as is published now.
func (d directory) earlierOutput(now [2]int64) (noted [2]int64, err error) {
	file := filepath.Join(d.path, "output")
	data, err := os.ReadFile(file)
	if err == nil {
		return noted, protocol.Decode(data, &noted)
	}
	if err := errors.Join(os.WriteFile(file+".tmp", protocol.Encode(&now), 0o600), os.Rename(file+".tmp", file)); err != nil {
		return noted, hostError(err, "note how much a command has printed")
	}
	return now, nil
}

// remove removes the directory and everything in it, whatever a container put there.
func (d directory) remove(ctx context.Context) error {
	if err := removal.Tree(ctx, d.path); err != nil && ctx.Err() == nil {
		return hostError(err, "remove a sandbox's directory")
	}
	return ctx.Err()
}
