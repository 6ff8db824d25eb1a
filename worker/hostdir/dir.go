package hostdir

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
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// Root is the directory that contains the directories of all sandboxes of one engine.
type Root struct{ path string }

// In returns the root below a worker's state directory for one engine.
func In(stateDir string) Root { return Root{filepath.Join(stateDir, "sandboxes")} }

// Of returns the directory of one generation of a sandbox. The directory need not exist.
func (r Root) Of(k protocol.SandboxKey, generation uint64) Dir {
	// IDs contain no dot, so two sandboxes never have the same name.
	name := fmt.Sprintf("%s.%s.%d", k.Tenant, k.ID, generation)
	return Dir{Key: k, Generation: generation, Path: filepath.Join(r.path, name)}
}

// List returns the directories that exist.
func (r Root) List() ([]Dir, error) {
	entries, err := os.ReadDir(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, hosterr.Wrap(err, "list the directories of sandboxes")
	}
	var dirs []Dir
	for _, e := range entries {
		if d, ok := r.parse(e.Name()); ok {
			dirs = append(dirs, d)
		}
	}
	return dirs, nil
}

func (r Root) parse(name string) (Dir, bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || protocol.ValidateID("", parts[0]) != nil || protocol.ValidateID("", parts[1]) != nil {
		return Dir{}, false
	}
	g, err := strconv.ParseUint(parts[2], 10, 64)
	return r.Of(protocol.SandboxKey{Tenant: parts[0], ID: parts[1]}, g), err == nil
}

// Has reports whether a sandbox has a directory, of any generation.
func (r Root) Has(k protocol.SandboxKey) (bool, error) {
	dirs, err := r.List()
	return slices.ContainsFunc(dirs, func(d Dir) bool { return d.Key == k }), err
}

// Dir is the directory of one generation of a sandbox, or of a service of the sandbox:
//
//	<tenant>.<sandbox>.<generation>/
//	    key         authenticates the supervisor's exit records; the container cannot see it
//	    defaults    settings that each start of the container needs; see Defaults
//	    bindings    which files of the host are mounted; see package hostfiles
//	    mounts/     links to these files; the engine mounts the links
//	    shadow/     copies of tools' directories that cannot be mounted themselves
//	    unverified  exists from the start of the container until the worker has checked its mounts
//	    ctl/        bind-mounted read-only; contains the worker's socket
//	    etc/        bind-mounted read-only, file by file, instead of the engine's own files
//	    run/        output and exit records, written by the supervisor; the worker does not trust its content
//	    hashes/     for each exec with freed output, the hash states of its output; see package output
//	    output      how much output the container's own command published on other hosts; see EarlierOutput
//	    services/<name>/
//	                the same files for the container of a service
type Dir struct {
	Key        protocol.SandboxKey
	Generation uint64
	Path       string
}

// At returns d at another path: an earlier worker with another state directory may have made the directory there. If
// path is not absolute, or its last element is not that of d, At returns d unchanged.
func (d Dir) At(path string) Dir {
	if filepath.IsAbs(path) && filepath.Base(path) == filepath.Base(d.Path) {
		d.Path = filepath.Clean(path)
	}
	return d
}

// Service returns the directory of a service of the sandbox.
func (d Dir) Service(name string) Dir {
	return Dir{Key: d.Key, Generation: d.Generation, Path: filepath.Join(d.Path, "services", name)}
}

// Sandbox returns the path of the sandbox's own directory, even if d is the directory of a service.
func (d Dir) Sandbox() string {
	if services := filepath.Dir(d.Path); filepath.Base(services) == "services" {
		return filepath.Dir(services)
	}
	return d.Path
}

// Ctl returns the path of the directory with the worker's socket.
func (d Dir) Ctl() string { return filepath.Join(d.Path, "ctl") }

// Run returns the path of the directory with the files that the supervisor writes.
func (d Dir) Run() string { return filepath.Join(d.Path, "run") }

// ExecHash returns the path of the file with the hash states of an exec's output.
func (d Dir) ExecHash(exec string) string { return filepath.Join(d.Path, "hashes", exec) }

// Create makes the directory, or completes a directory that a crash left incomplete, and returns the directory's key.
func (d Dir) Create() ([]byte, error) {
	for _, dir := range []string{d.Path, d.Ctl(), d.Run()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, hosterr.Wrap(err, "create a sandbox's directory")
		}
	}
	if secret, err := d.Secret(); err == nil {
		return secret, nil
	}
	secret := make([]byte, keyLength)
	rand.Read(secret) // rand.Read never fails
	if err := d.WriteFile("key", secret); err != nil {
		return nil, hosterr.Wrap(err, "create a sandbox's key")
	}
	return secret, nil
}

const keyLength = 32

// Secret reads the key. The error is not_found if the directory is incomplete or does not exist, and unavailable if the
// key cannot be read at the moment.
func (d Dir) Secret() ([]byte, error) {
	secret, err := os.ReadFile(filepath.Join(d.Path, "key"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the process may have no free file descriptor
		return nil, protocol.Errorf(protocol.Unavailable, "", "read the sandbox's key: %v", err)
	}
	if err != nil || len(secret) != keyLength {
		return nil, protocol.Errorf(protocol.NotFound, "", "the sandbox has no key: %v", err)
	}
	return secret, nil
}

// WriteFile replaces a file of the directory. After an error or a crash, the file still has its old content.
func (d Dir) WriteFile(name string, data []byte) error {
	file := filepath.Join(d.Path, name)
	if err := os.WriteFile(file+".tmp", data, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// Remove removes the directory with all its contents, including the files that containers made.
func (d Dir) Remove(ctx context.Context) error {
	if err := removal.Tree(ctx, d.Path); err != nil && ctx.Err() == nil {
		return hosterr.Wrap(err, "remove a sandbox's directory")
	}
	return ctx.Err()
}
