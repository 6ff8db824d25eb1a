package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/boxfleet/boxfleet/protocol"
)

// drawHost returns a random host.
func drawHost(t *rapid.T, worker string) *protocol.Host {
	h := host(worker, 0)
	h.Slots, h.CPU, h.Memory = rapid.IntRange(1, 4).Draw(t, "slots"), 4, 4<<30
	h.State = rapid.SampledFrom([]protocol.HostState{protocol.HostReady, protocol.HostReady, protocol.HostReady,
		protocol.HostSuspect, protocol.HostLost}).Draw(t, "state")
	h.Images = rapid.Bool().Draw(t, "tells images")
	h.Profiles = rapid.SampledFrom([][]string{nil, {protocol.ProfileHardened},
		{protocol.ProfileHardened, protocol.ProfileStandard}}).Draw(t, "profiles")
	h.GPUs = rapid.IntRange(0, 1).Draw(t, "gpus")
	if rapid.Bool().Draw(t, "has a disk") {
		h.Disk, h.DiskQuota = 8<<30, true
	}
	if rapid.IntRange(0, 3).Draw(t, "full") == 0 {
		h.Full = "the disk runs short"
	}
	if rapid.IntRange(0, 3).Draw(t, "has defaults") == 0 {
		h.Defaults = &protocol.SandboxSpec{Memory: 1 << 30,
			Profile: rapid.SampledFrom([]string{"", protocol.ProfileStandard}).Draw(t, "default profile")}
	}
	return h
}

func drawImages(t *rapid.T, worker string) *protocol.HostImages {
	if rapid.IntRange(0, 3).Draw(t, "tells nothing") == 0 {
		return nil
	}
	var names []string
	for _, name := range []string{"docker.io/library/a:latest", "docker.io/library/b:latest",
		"docker.io/library/c:latest"} {
		if rapid.Bool().Draw(t, "has "+name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return &protocol.HostImages{Worker: worker, Instance: "i-" + worker, Listed: true, Names: names}
}

func drawSandbox(t *rapid.T, hosts []Row) *protocol.Sandbox {
	spec := protocol.SandboxSpec{
		Image: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t,
			"image"), CPU: 1, Memory: protocol.Bytes(rapid.IntRange(1, 4).Draw(t, "memory")) << 30,
		Env: map[string]string{"N": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "env")},
	}
	if rapid.IntRange(0, 3).Draw(t, "service") == 0 {
		spec.RequiredServices = protocol.Services{"db": {Image: "b", CPU: 1, Memory: 1 << 29}}
	}
	spec.Pull = rapid.SampledFrom([]string{"", protocol.PullNever}).Draw(t, "pull")
	spec.Profile = rapid.SampledFrom([]string{"", protocol.ProfileStandard}).Draw(t, "profile")
	spec.GPUs = rapid.SampledFrom([]string{"", "", "1", "all"}).Draw(t, "wanted gpus")
	if rapid.IntRange(0, 3).Draw(t, "wants a disk") == 0 {
		spec.Disk = 1 << 30
	}
	b := &protocol.Sandbox{ID: "b", State: protocol.StatePending, Spec: spec, Defaulted: []string{"profile"}}
	if rapid.IntRange(0, 5).Draw(t, "resumes") == 0 {
		b.Resuming, b.HostID = true, hosts[rapid.IntRange(0, len(hosts)-1).Draw(t, "host")].Host.HostID
	}
	return b
}

// After any changes of the hosts in any order, the index places sandboxes like the function Place does.
func TestTheIndexPlacesAsTheScanDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index, told, version := NewIndex(), Images{}, uint64(1)
		var rows []Row
		for i := range rapid.IntRange(1, 9).Draw(t, "hosts") {
			rows = append(rows, Row{drawHost(t, fmt.Sprint("w", i)), version})
		}
		index.SetHosts(slices.Clone(rows))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			i := rapid.IntRange(0, len(rows)-1).Draw(t, "which")
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // the host's worker registers again
				version++
				h := drawHost(t, rows[i].Host.Worker)
				was := rows[i].Host
				h.Sandboxes, h.UsedCPU, h.UsedMem, h.UsedDisk = was.Sandboxes, was.UsedCPU, was.UsedMem, was.UsedDisk
				h.UsedGPUs = min(was.UsedGPUs, h.GPUs)
				rows[i] = Row{h, version}
				index.SetHosts(slices.Clone(rows))
			case 1: // the host's worker reports its images
				worker := rows[i].Host.Worker
				if told[worker] = drawImages(t, worker); told[worker] == nil {
					delete(told, worker)
				}
				index.SetImages(worker, told[worker])
			case 2: // sandboxes come and go
				n := rapid.IntRange(0, rows[i].Host.Slots).Draw(t, "sandboxes")
				u := Usage{Sandboxes: n,
					Totals: protocol.Totals{CPU: float64(n), Memory: protocol.Bytes(n) << 30,
						Disk: protocol.Bytes(n) << 29}, GPUs: min(n, 1)}
				h := *rows[i].Host
				h.Sandboxes, h.UsedCPU, h.UsedMem, h.UsedDisk, h.UsedGPUs = 0, 0, 0, 0, 0
				u.AddTo(&h)
				rows[i].Host = &h
				index.SetUsage(h.HostID, u)
			default:
				b := drawSandbox(t, rows)
				var hosts []*protocol.Host
				for _, r := range rows {
					hosts = append(hosts, r.Host)
				}
				want, refusals := Place(b, hosts, told)
				got := index.Place(b, KindOf(b))
				if (want == nil) != (got == nil) || want != nil && want.Worker != got.Worker {
					t.Fatalf("the index places the sandbox on %+v, the scan on %+v: %+v", got, want, refusals)
				}
			}
		}
	})
}

func fleet(n int) (rows []Row) {
	for i := range n {
		h := host(fmt.Sprintf("w%04d", i), 0)
		h.Slots, h.Memory, h.CPU = 200, 1<<40, 64
		rows = append(rows, Row{h, 1})
	}
	return rows
}

// BenchmarkPlace places a burst of sandboxes of four kinds. Each sandbox then takes resources of its host.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint("index/hosts=", n), func(b *testing.B) {
			index := NewIndex()
			index.SetHosts(fleet(n))
			used := map[string]Usage{}
			for i := range 4 {
				s := &protocol.Sandbox{State: protocol.StatePending,
					Spec: protocol.SandboxSpec{Image: fmt.Sprint("i", i), CPU: 0.01, Memory: 1 << 24}}
				index.Place(s, KindOf(s))
			}
			b.ResetTimer()
			for i := range b.N {
				s := &protocol.Sandbox{State: protocol.StatePending,
					Spec: protocol.SandboxSpec{Image: fmt.Sprint("i", i%4), CPU: 0.01, Memory: 1 << 24}}
				h := index.Place(s, KindOf(s))
				used[h.HostID] = used[h.HostID].Plus(UsageOf(&s.Spec))
				if i%(n*100) == 0 {
					clear(used) // empty the hosts before all of them are full
				}
				index.SetUsage(h.HostID, used[h.HostID])
			}
		})
		b.Run(fmt.Sprint("scan/hosts=", n), func(b *testing.B) {
			var hosts []*protocol.Host
			for _, r := range fleet(n) {
				hosts = append(hosts, r.Host)
			}
			for i := range b.N {
				s := &protocol.Sandbox{State: protocol.StatePending,
					Spec: protocol.SandboxSpec{Image: fmt.Sprint("i", i%4), CPU: 0.01, Memory: 1 << 24}}
				h, _ := Place(s, hosts, nil)
				UsageOf(&s.Spec).AddTo(h)
				if h.Sandboxes == 100 {
					h.Sandboxes, h.UsedCPU, h.UsedMem = 0, 0, 0
				}
			}
		})
	}
}
