package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// posture says how well the engine and the kernel keep sandboxes from the host and from each other, and what its
// operator should do about it. Nothing is refused for it.
func (w *worker) posture() *protocol.Posture {
	p := enginePosture(w.info)
	p.Warnings = append(p.Warnings, lowLimits(w.cfg.Slots, w.cfg.Connections, sysctl)...)
	if w.isolation.ConnectionsUnlimited() {
		p.Warnings = append(p.Warnings, "the kernel cannot count connections (module nft_connlimit): one sandbox can fill the host's table of them")
	}
	return p
}

// tellPosture logs what is wrong with it, when a worker begins.
func (w *worker) tellPosture() {
	if warnings := w.posture().Warnings; len(warnings) > 0 {
		w.log.Warn("the host is weaker than it could be; host list shows it, too", "why", strings.Join(warnings, "; "))
	}
}

// enginePosture is what an engine says of itself, with what is to be said about it.
func enginePosture(i docker.Info) *protocol.Posture {
	p := &protocol.Posture{Seccomp: i.Seccomp, UserNamespace: i.UserNamespace, Rootless: i.Rootless, MAC: i.MAC,
		Cgroup: i.CgroupVersion, Kernel: i.Kernel, Runc: i.Runc, Containerd: i.Containerd}
	switch i.Seccomp {
	case "":
		p.Seccomp = "none"
		p.Warnings = append(p.Warnings, "the engine filters no system calls: its kernel or its build lacks seccomp")
	case "unconfined":
		p.Warnings = append(p.Warnings, "the engine's seccomp profile is unconfined: give it the default one (seccomp-profile in daemon.json)")
	}
	for _, k := range knownBad {
		have, wrong := map[string]string{"runc": i.Runc, "the engine": i.Version, "the kernel": i.Kernel}[k.what], k.from
		if v, ok := versionOf(have); ok && !v.before(wrong) && v.before(k.mended) {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s %s is older than %s, which mends %s; unless its distribution has mended it, upgrade", k.what, have, k.mended, k.why))
		}
	}
	return p
}

// knownBad are versions with a known way out of a container, from one version up to the one that mends it.
var knownBad = []struct {
	what         string
	from, mended version
	why          string
}{
	{"runc", version{}, version{1, 1, 12}, "CVE-2024-21626, a descriptor of the host's that leads out"},
	{"runc", version{1, 1, 12}, version{1, 2, 8}, "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881, ways round what is masked"},
	{"runc", version{1, 3, 0}, version{1, 3, 3}, "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881, ways round what is masked"},
	{"the engine", version{}, version{20, 10, 18}, "CVE-2022-36109, groups that a container keeps"},
	{"the kernel", version{5, 8, 0}, version{5, 10, 102}, "CVE-2022-0847 (Dirty Pipe), which writes the host's files"},
	{"the kernel", version{5, 11, 0}, version{5, 15, 25}, "CVE-2022-0847 (Dirty Pipe), which writes the host's files"},
	{"the kernel", version{5, 16, 0}, version{5, 16, 11}, "CVE-2022-0847 (Dirty Pipe), which writes the host's files"},
}

type version [3]int

// versionOf reads the numbers at the beginning of a version, such as 1.1.5 of "1.1.5+ds1".
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

// lowLimits names the kernel's limits for the whole machine, or for a user id, that so many sandboxes could use up,
// and what they should be. get reads one; one that the kernel does not have is passed over.
func lowLimits(slots, connections int, get func(name string) (uint64, bool)) (warnings []string) {
	for _, l := range []struct {
		name      string
		each, own uint64 // for one sandbox, and for the host itself
		why       string
	}{
		// By user id. Root of all sandboxes is the host's root for the kernel, unless the engine maps user ids.
		{"fs.inotify.max_user_instances", 32, 128, "file watchers of one user id, in all sandboxes and the host together"},
		{"fs.inotify.max_user_watches", 1024, 8192, "files watched by one user id, in all sandboxes and the host together"},
		{"kernel.pty.max", leastPTYs, 1024, "terminals of all sandboxes"},
		{"net.netfilter.nf_conntrack_max", uint64(connections), 16384, "connections of all sandboxes"},
		{"kernel.pid_max", protocol.DefaultPIDs, 4096, "processes and threads of the machine"},
		{"kernel.threads-max", protocol.DefaultPIDs, 4096, "processes and threads of the machine"},
		{"fs.file-max", 16384, 65536, "open files of the machine"},
	} {
		want := uint64(slots)*l.each + l.own
		if have, ok := get(l.name); ok && have < want {
			warnings = append(warnings, fmt.Sprintf("%s is %d, which bounds %s: for %d sandboxes raise it to %d (sysctl -w %s=%d), or lower worker.slots",
				l.name, have, l.why, slots, want, l.name, want))
		}
	}
	return warnings
}

// leastPTYs is how many terminals a sandbox has in any case.
const leastPTYs = 24

// sysctl reads a parameter of this machine's kernel.
func sysctl(name string) (value uint64, ok bool) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return 0, false
	}
	value, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return value, err == nil
}
