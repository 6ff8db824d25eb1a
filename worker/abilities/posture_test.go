package abilities

import (
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestThePostureHasAWarningForEachWeakness(t *testing.T) {
	good := docker.Info{
		Version: "26.1.4", Seccomp: "builtin", Runc: "1.3.3", Kernel: "6.1.0-13-amd64", CgroupVersion: "2", MAC: "apparmor",
	}
	for name, c := range map[string]struct {
		change func(*docker.Info)
		want   string // part of the warnings; "": no warnings
	}{
		"a good engine":                 {func(*docker.Info) {}, ""},
		"no seccomp profile":            {func(i *docker.Info) { i.Seccomp = "unconfined" }, "unconfined"},
		"no seccomp":                    {func(i *docker.Info) { i.Seccomp = "" }, "filters no system calls"},
		"a custom seccomp profile":      {func(i *docker.Info) { i.Seccomp = "/etc/docker/seccomp.json" }, ""},
		"an old runc":                   {func(i *docker.Info) { i.Runc = "1.1.5+ds1" }, "CVE-2024-21626"},
		"a runc of 2024":                {func(i *docker.Info) { i.Runc = "1.1.12" }, "CVE-2025-31133"},
		"a newer but vulnerable runc":   {func(i *docker.Info) { i.Runc = "1.3.0-rc.1" }, "CVE-2025-31133"},
		"a runc of the next series":     {func(i *docker.Info) { i.Runc = "1.4.0" }, ""},
		"a fixed runc":                  {func(i *docker.Info) { i.Runc = "1.2.8" }, ""},
		"another runtime":               {func(i *docker.Info) { i.Runc = "" }, ""},
		"an old engine":                 {func(i *docker.Info) { i.Version = "20.10.5+dfsg1" }, "CVE-2022-36109"},
		"a fixed engine of that series": {func(i *docker.Info) { i.Version = "20.10.24+dfsg1" }, ""},
		"a vulnerable kernel":           {func(i *docker.Info) { i.Kernel = "5.15.0-25-generic" }, "CVE-2022-0847"},
		"a fixed kernel":                {func(i *docker.Info) { i.Kernel = "5.15.25" }, ""},
	} {
		i := good
		c.change(&i)
		warnings := strings.Join(EnginePosture(i).Warnings, "; ")
		if (warnings == "") != (c.want == "") || !strings.Contains(warnings, c.want) {
			t.Errorf("%s: the warnings are %q, want %q", name, warnings, c.want)
		}
	}
}
