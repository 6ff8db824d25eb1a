package abilities

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// EnginePosture returns what an engine reports about its isolation, with a warning for each weakness.
func EnginePosture(i docker.Info) *protocol.Posture {
	p := &protocol.Posture{Seccomp: i.Seccomp, UserNamespace: i.UserNamespace, Rootless: i.Rootless, MAC: i.MAC,
		Cgroup: i.CgroupVersion, Kernel: i.Kernel, Runc: i.Runc, Containerd: i.Containerd}
	switch i.Seccomp {
	case "":
		p.Seccomp = "none"
		p.Warnings = append(p.Warnings,
			"the engine filters no system calls: its host's kernel or the engine's build lacks seccomp")
	case "unconfined":
		p.Warnings = append(p.Warnings,
			"the engine's seccomp profile is unconfined: set the default profile (seccomp-profile in daemon.json)")
	}
	for _, v := range vulnerable {
		have := map[string]string{"runc": i.Runc, "the engine": i.Version, "the kernel": i.Kernel}[v.what]
		if is, ok := versionOf(have); ok && !is.before(v.from) && is.before(v.fixed) {
			p.Warnings = append(p.Warnings, fmt.Sprintf(
				"%s %s is older than %s, which fixes %s; upgrade it unless its distribution has backported the fix",
				v.what, have, v.fixed, v.why))
		}
	}
	return p
}

// vulnerable lists programs with a known escape from containers. A version v is vulnerable if from <= v < fixed.
var vulnerable = []struct {
	what        string
	from, fixed version
	why         string
}{
	{"runc", version{}, version{1, 1, 12}, "CVE-2024-21626 (a leaked descriptor of the host)"},
	{"runc", version{1, 1, 12}, version{1, 2, 8}, maskedPaths},
	{"runc", version{1, 3, 0}, version{1, 3, 3}, maskedPaths},
	{"the engine", version{}, version{20, 10, 18}, "CVE-2022-36109 (a container keeps supplementary groups)"},
	{"the kernel", version{5, 8, 0}, version{5, 10, 102}, dirtyPipe},
	{"the kernel", version{5, 11, 0}, version{5, 15, 25}, dirtyPipe},
	{"the kernel", version{5, 16, 0}, version{5, 16, 11}, dirtyPipe},
}

const (
	maskedPaths = "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881 (ways around masked paths)"
	dirtyPipe   = "CVE-2022-0847 (Dirty Pipe, which writes to the host's files)"
)

type version [3]int

// versionOf reads the numbers at the beginning of a version. For example, "1.1.5+ds1" has the version 1.1.5.
func versionOf(text string) (v version, ok bool) {
	for i, part := range strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3) {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			return v, false
		}
		v[i], ok = n, i > 0
	}
	return v, ok
}

func (v version) before(o version) bool {
	for i := range v {
		if v[i] != o[i] {
			return v[i] < o[i]
		}
	}
	return false
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
