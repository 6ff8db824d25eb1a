package docker

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
)

// Info describes an engine.
type Info struct {
	Version       string
	APIVersion    string // the version negotiated with the engine
	Name          string // the host's name
	Runtime       string // the default OCI runtime, such as "runc" or "runsc"
	Runtimes      []string
	CPUs          int
	Memory        int64 // bytes
	Kernel        string
	OS            string
	Architecture  string
	CgroupVersion string // "1" or "2"
	StorageDriver string
	DiskQuota     bool   // the storage driver may be able to limit a container's own layer
	RootDir       string // directory of images and containers on the engine's host
	Rootless      bool
	Seccomp       string // profile: default, builtin, a path, or unconfined; "": no filter
	UserNamespace bool   // the engine maps the user ids of containers
	MAC           string // apparmor, selinux, or ""
	Runc          string // version; "" if the engine does not tell
	Containerd    string // version; "" if the engine does not tell

	// The limits that the host's kernel can enforce. The engine ignores other limits with a warning.
	CanLimitCPU, CanLimitMemory, CanLimitSwap, CanLimitPIDs bool
}

// Like reports whether two descriptions are the same. A restart of the engine can change any part of a description.
func (i Info) Like(o Info) bool { return reflect.DeepEqual(i, o) }

// mayLimitDisk reports whether a storage driver may be able to limit a container's own layer. overlay2 can limit layers
// on an xfs mounted with project quotas. The engine does not report project quotas, so only an attempt shows whether
// the limit works.
func mayLimitDisk(driver string, status [][2]string) bool {
	switch driver {
	case "btrfs", "zfs", "devicemapper":
		return true
	case "overlay2":
		return slices.Contains(status, [2]string{"Backing Filesystem", "xfs"})
	}
	return false
}

// readSecurity parses security options such as name=seccomp,profile=default.
func (i *Info) readSecurity(options []string) {
	for _, option := range options {
		name, rest, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		switch name {
		case "seccomp":
			i.Seccomp = cmp.Or(strings.TrimPrefix(rest, "profile="), "default")
		case "apparmor", "selinux":
			i.MAC = name
		case "userns":
			i.UserNamespace = true
		case "rootless":
			i.Rootless = true
		}
	}
}

// Info reads the engine's description.
func (conn *connection) Info(ctx context.Context) (Info, error) {
	var info Info
	err := conn.do(ctx, call{verb: "query", kind: kindEngine, limit: conn.readLimit()}, func(ctx context.Context) error {
		got, err := conn.client.Info(ctx)
		if err != nil {
			return err
		}
		info = Info{
			Version: got.ServerVersion, APIVersion: conn.client.ClientVersion(), Name: got.Name,
			Runtime: got.DefaultRuntime, CPUs: got.NCPU, Memory: got.MemTotal,
			Kernel: got.KernelVersion, OS: got.OperatingSystem, Architecture: got.Architecture,
			CgroupVersion: got.CgroupVersion, StorageDriver: got.Driver, RootDir: got.DockerRootDir,
			CanLimitCPU: got.CPUCfsQuota, CanLimitMemory: got.MemoryLimit,
			CanLimitSwap: got.SwapLimit, CanLimitPIDs: got.PidsLimit,
		}
		for name := range got.Runtimes {
			info.Runtimes = append(info.Runtimes, name)
		}
		slices.Sort(info.Runtimes)
		info.DiskQuota = mayLimitDisk(got.Driver, got.DriverStatus)
		info.readSecurity(got.SecurityOptions)
		made, err := conn.client.ServerVersion(ctx)
		for _, c := range made.Components {
			switch c.Name {
			case "runc":
				info.Runc = c.Version
			case "containerd":
				info.Containerd = c.Version
			}
		}
		return err
	})
	return info, err
}
