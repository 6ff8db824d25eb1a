package hostfiles

import (
	"fmt"
	"path"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// An image may declare volumes. For each volume, the engine would mount a directory of the host, which is writable even
// in a read-only container and has no size limit. The worker therefore mounts a tmpfs, the cover, at the path of each
// volume. After the start, before a command runs in the container, the worker unmounts the covers. The container then
// sees the image's files at these paths. Writes go to the container's own layer, so they count towards the disk limit
// and are kept until the container is removed.
//
// A volume stays covered by an empty tmpfs if a file system is mounted below it. All volumes stay covered if the worker
// does not run as root, because it then cannot enter the container's mount namespace.

// engineDirs are directories in which the engine or the worker mounts file systems in every container.
var engineDirs = []string{"/proc", "/sys", "/dev", control.ContainerAt}

// Volumes lists the volumes that an image declares, except volumes at the mounted paths. Outer volumes come before
// inner volumes. The error is failed_precondition if a volume is at a path that cannot be covered. The parameter field
// is the image's field in the spec, for the error.
func Volumes(image docker.Image, mounted []string, field string) ([]string, error) {
	var volumes []string
	for _, declared := range image.Volumes {
		at := path.Clean(declared)
		reserved := slices.ContainsFunc(engineDirs, func(dir string) bool { return isBelow(at, dir) })
		if reserved || at == "/" || at == "/etc" || !path.IsAbs(at) {
			err := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
				"the image declares a volume at %.200s, where a sandbox cannot have one", declared)
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

// CoverVolumes adds the covers of volumes to a container, so that the engine mounts no directory of the host at these
// paths. memory is the container's memory limit.
func CoverVolumes(spec *docker.ContainerSpec, volumes []string, memory protocol.Bytes) {
	for _, at := range volumes {
		if spec.Covers == nil {
			spec.Covers = map[string]int64{}
		}
		spec.Covers[at] = max(int64(memory/2), 1<<20)
	}
}

// CheckCopies refuses to copy a tree into a volume that stays covered, because the container could not see the copy. It
// checks the trees of the given service, or those of the primary container if service is "". The parameter mounted has
// the paths of the container's mounts.
func CheckCopies(spec *protocol.SandboxSpec, service string, volumes, mounted []string) error {
	covered := coveredVolumes(volumes, mounted)
	for i, c := range spec.Copies {
		hides := func(at string) bool { return isBelow(path.Clean(c.Target), at) }
		if at := slices.IndexFunc(covered, hides); c.Service == service && at >= 0 {
			err := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCopyFailed,
				"%s is in the image's volume %s, which stays empty on this host, because the spec mounts files below it, or "+
					"because the worker does not run as root", c.Target, covered[at])
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
