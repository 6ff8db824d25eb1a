package hostfiles

import (
	"slices"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestVolumesAreCoveredUnlessTheSpecMountsFilesAtTheirPath(t *testing.T) {
	t.Parallel()
	image := docker.Image{Volumes: []string{"/data/inner", "/data/", "/mounted", "/data"}}
	volumes, err := Volumes(image, []string{"/mounted"}, "spec.image")
	if err != nil || !slices.Equal(volumes, []string{"/data", "/data/inner"}) {
		t.Errorf("the volumes are %q, error %v, want /data and /data/inner", volumes, err)
	}
	var spec docker.ContainerSpec
	CoverVolumes(&spec, volumes, 64<<20)
	if len(spec.Covers) != 2 || spec.Covers["/data"] != 32<<20 {
		t.Errorf("the covers are %v, want two, each with half of the memory", spec.Covers)
	}
}

func TestVolumesWhereTheEngineMountsAreRefused(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"/", "/etc", "/proc/x", "/sys", "/dev/shm", "/.boxfleet", "relative", "/a/../etc"} {
		_, err := Volumes(docker.Image{Volumes: []string{at}}, nil, "spec.image")
		if protocol.CodeOf(err) != protocol.FailedPrecondition || !names(err, "spec.image") {
			t.Errorf("a volume at %s: error %v, want failed_precondition for spec.image", at, err)
		}
	}
}

func TestCopiesIntoAVolumeThatStaysCoveredAreRefused(t *testing.T) {
	t.Parallel()
	if !CanVerify() {
		t.Skip("without root all volumes stay covered")
	}
	spec := &protocol.SandboxSpec{Copies: []protocol.Copy{{Target: "/elsewhere"}, {Target: "/data/tree"}}}
	volumes := []string{"/data"}
	if err := CheckCopies(spec, "", volumes, []string{"/data/tree/mounted"}); !names(err, "spec.copies[1]") {
		t.Errorf("with a mount below the volume: error %v, want one that names spec.copies[1]", err)
	}
	for what, err := range map[string]error{
		"without a mount below the volume": CheckCopies(spec, "", volumes, []string{"/elsewhere"}),
		"in another container":             CheckCopies(spec, "db", volumes, []string{"/data/tree/mounted"}),
	} {
		if err != nil {
			t.Errorf("%s: a copy into the volume is refused: %v", what, err)
		}
	}
}
