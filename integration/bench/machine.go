package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// machine describes the machine on which the figures were measured.
type machine struct {
	CPU     string  `json:"cpu"`
	Cores   int     `json:"cores"`
	Kernel  string  `json:"kernel"`
	Memory  int64   `json:"memory_bytes"`
	Engine  string  `json:"engine"`
	Storage string  `json:"engine_storage"`
	Cgroup  string  `json:"cgroup"`
	Go      string  `json:"go"`
	Load    float64 `json:"load_before"` // load average of the minute before the first sample
}

func describeMachine(ctx context.Context, e *engine) (machine, error) {
	info, err := e.docker.Info(ctx)
	if err != nil {
		return machine{}, err
	}
	return machine{
		CPU: cpuModel(), Cores: runtime.NumCPU(), Kernel: info.Kernel, Memory: info.Memory, Engine: info.Version,
		Storage: info.StorageDriver, Cgroup: info.CgroupVersion, Go: runtime.Version(), Load: load(),
	}, nil
}

// cpuModel returns the model of the processor, or "" if the kernel does not report it.
func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load returns the load average of the last minute, or 0 if it cannot be read.
func load() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return v
}

// commit returns the revision that was built: from the build information, otherwise from git, otherwise "unknown". The
// suffix "-dirty" means that files differ from that revision.
func commit(ctx context.Context) string {
	var revision string
	var dirty bool
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
	}
	if revision == "" { // a program run by `go run` has no revision in its build information
		out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
		if err != nil {
			return "unknown"
		}
		revision = strings.TrimSpace(string(out))
		out, err = exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output()
		dirty = err != nil || len(out) > 0
	}
	if dirty {
		revision += "-dirty"
	}
	return revision
}
