package hostfiles

import (
	"fmt"
	"path"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// MountSecrets adds the file system in memory for files of secrets to a container, unless something else is at its
// path. The engine cannot add it to a running container, and a later exec may need it, so it is in each new container.
// needed is true if the container's own spec names files of secrets: something else at the path is then an error.
//
// mounted are the other mounts, and volumes the image's volumes. A file system in memory above the path is compatible,
// but a directory of the host is not: the engine would make the path's directories there.
func MountSecrets(container *docker.ContainerSpec, needed bool, mounted, volumes []string, copies []protocol.Copy,
	service string) error {
	occupied := ""
	for _, list := range [][]string{mounted, volumes} {
		for _, at := range list {
			at = path.Clean(at)
			_, inMemory := container.Tmpfs[at]
			above, inside := isBelow(protocol.SecretsDir, at), isBelow(at, protocol.SecretsDir)
			if above && (!inMemory || inside) || inside {
				occupied = at
			}
		}
	}
	for _, c := range copies {
		if at := path.Clean(c.Target); c.Service == service && isBelow(at, protocol.SecretsDir) {
			occupied = at
		}
	}
	switch {
	case occupied == "":
		container.Secrets = fmt.Sprintf("rw,noexec,nosuid,nodev,mode=0755,gid=%d,size=%d", control.SecretsGroup,
			control.SecretsSize)
	case needed:
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"files of secrets need the directory %s, but the image or the spec uses %.200s", protocol.SecretsDir, occupied)
	}
	return nil
}
