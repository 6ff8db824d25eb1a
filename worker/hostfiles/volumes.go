package hostfiles

import (
	"fmt"
	"path"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An image may declare volumes. For each, the engine would mount a directory of the host, which is writable even in a
// read-only container and has no size limit. So the worker covers each volume with a tmpfs instead, and unmounts that
// after the start, before anything runs in the container. Then the container shows what the image has there, and
// writes go to its own layer like all others: they count towards the disk limit and exist as long as the container.
//
// A volume stays covered, by an empty tmpfs, if something else is mounted below it, or if the worker does not run as
// root: then it cannot enter the container's mount namespace.

// engineDirs are directories that the engine, or the worker for every container, mounts something into.
var engineDirs = []string{"/proc", "/sys", "/dev", control.ContainerAt}

// Volumes lists the volumes that an image declares, outer ones before inner ones, without the paths in mounted.
// Error: failed_precondition if a volume is at a path that cannot be covered. field names the image in the error.
func Volumes(image docker.Image, mounted []string, field string) ([]string, error) {
	var volumes []string
	for _, declared := range image.Volumes {
		at := path.Clean(declared)
		reserved := slices.ContainsFunc(engineDirs, func(dir string) bool { return isBelow(at, dir) })
		if reserved || at == "/" || at == "/etc" || !path.IsAbs(at) {
			err := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
				"the image declares a volume at %.200s, where none is possible", declared)
			err.Field = field
			return nil, err
		}
		if !slices.Contains(mounted, at) {
			volumes = append(volumes, at)
		}
	}
	slices.Sort(volumes)
	return slices.Compact(volumes), nil
}

// CoverVolumes adds the covers of volumes to a container, so that the engine mounts nothing there. memory is the
// container's limit.
func CoverVolumes(spec *docker.ContainerSpec, volumes []string, memory protocol.Bytes) {
	for _, at := range volumes {
		if spec.Covers == nil {
			spec.Covers = map[string]int64{}
		}
		spec.Covers[at] = max(int64(memory/2), 1<<20)
	}
}

// CheckCopies refuses to copy a tree of a service, or of the primary container if service is "", into a volume that
// stays covered in a container with these mounts: the copy could not be seen there.
func CheckCopies(spec *protocol.SandboxSpec, service string, volumes, mounted []string) error {
	covered := coveredVolumes(volumes, mounted)
	for i, c := range spec.Copies {
		hides := func(at string) bool { return isBelow(path.Clean(c.Target), at) }
		if at := slices.IndexFunc(covered, hides); c.Service == service && at >= 0 {
			err := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCopyFailed,
				"%s is in the image's volume %s, which is empty here: something is mounted below it, or the worker does not "+
					"run as root", c.Target, covered[at])
			err.Field = fmt.Sprintf("spec.copies[%d]", i)
			return err
		}
	}
	return nil
}

// coveredVolumes lists the volumes that stay covered in a container with these mounts.
func coveredVolumes(volumes, mounted []string) []string {
	if !CanVerify() {
		return volumes
	}
	var covered []string
	for _, at := range volumes {
		if slices.ContainsFunc(mounted, func(other string) bool { return other != at && isBelow(other, at) }) {
			covered = append(covered, at)
		}
	}
	return covered
}
