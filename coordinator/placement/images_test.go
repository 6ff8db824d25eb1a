package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// stocked returns a host that reports images with these names, and the image id sha256:cafe0123.
func stocked(worker string, n int, t Images, names ...string) *protocol.Host {
	h := host(worker, n)
	h.Images, h.Instance = true, "i-"+worker
	names = append(names, "docker.io/library/sha256:cafe0123")
	slices.Sort(names)
	t[worker] = &protocol.HostImages{Worker: worker, Instance: h.Instance, Listed: true, Names: names}
	return h
}

const (
	appImage = "docker.io/library/app:latest"
	dbDigest = "registry.local/db@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
)

func TestASandboxThatNeverPullsGoesToAHostWithItsImages(t *testing.T) {
	told := Images{}
	hosts := []*protocol.Host{stocked("w1", 0, told), stocked("w2", 5, told, appImage),
		stocked("w3", 7, told, appImage, dbDigest)}
	services := func(image string) map[string]protocol.Service {
		return map[string]protocol.Service{"db": {Image: image}}
	}
	dbTag := strings.Replace(dbDigest, "@", ":1@", 1)
	for what, c := range map[string]struct {
		spec  protocol.SandboxSpec
		want  string // worker
		field string // in the refusal of w1
	}{
		"short name":        {protocol.SandboxSpec{Image: "app"}, "w2", "spec.image"},
		"full name":         {protocol.SandboxSpec{Image: appImage}, "w2", "spec.image"},
		"digest":            {protocol.SandboxSpec{Image: dbDigest}, "w3", "spec.image"},
		"digest with a tag": {protocol.SandboxSpec{Image: dbTag}, "w3", "spec.image"},
		"id":                {protocol.SandboxSpec{Image: "sha256:cafe0123"}, "w1", ""},
		"short id":          {protocol.SandboxSpec{Image: "cafe01"}, "w1", ""},
		"other tag":         {protocol.SandboxSpec{Image: "app:2"}, "", "spec.image"},
		"required service": {protocol.SandboxSpec{Image: "app", RequiredServices: services(dbDigest)}, "w3",
			"spec.image"},
		"service only": {protocol.SandboxSpec{Image: "cafe0123", RequiredServices: services("app")}, "w2",
			"spec.required_services.db.image"},
		"optional service": {protocol.SandboxSpec{Image: "app", OptionalServices: services("nowhere")}, "w2",
			"spec.image"},
		"required service, nowhere": {protocol.SandboxSpec{Image: "app", RequiredServices: services("nowhere")}, "",
			"spec.image"},
	} {
		b := &protocol.Sandbox{State: protocol.StatePending, Spec: c.spec}
		b.Spec.Pull = protocol.PullNever
		chosen, refusals := Place(b, hosts, told)
		got := ""
		if chosen != nil {
			got = chosen.Worker
		}
		if got != c.want {
			t.Errorf("%s: placed on %q, want %q: %+v", what, got, c.want, refusals)
		}
		if r := refusals[0].Reason; c.field == "" && r != "" || !strings.HasPrefix(r, c.field) {
			t.Errorf("%s: w1 refuses with %q, want a reason about %q", what, r, c.field)
		}
		if e := Impossible(b, hosts); e != nil {
			t.Errorf("%s: the sandbox does not wait, but fails with %v", what, e)
		}
		if chosen, _ := Place(&protocol.Sandbox{Spec: protocol.SandboxSpec{Image: "app:2", Pull: protocol.PullMissing}},
			hosts, told); chosen == nil {
			t.Errorf("%s: a sandbox whose image may be pulled is refused", what)
		}
	}
}

func TestWithoutAReportOfImagesOnlyAHostWithAnOlderWorkerIsTried(t *testing.T) {
	b := &protocol.Sandbox{State: protocol.StatePending,
		Spec: protocol.SandboxSpec{Image: "app", Pull: protocol.PullNever}}
	for what, c := range map[string]struct {
		change func(*protocol.Host, *protocol.HostImages)
		taken  bool
	}{
		"lacks the image": {func(*protocol.Host, *protocol.HostImages) {}, false},
		"an older worker": {func(h *protocol.Host, _ *protocol.HostImages) { h.Images = false }, true},
		"reported by an earlier worker process": {func(h *protocol.Host, i *protocol.HostImages) {
			h.Instance, i.Names = "new", []string{appImage}
		}, false},
		"the engine has not listed its images": {func(_ *protocol.Host, i *protocol.HostImages) {
			i.Listed, i.Names = false, []string{appImage}
		}, false},
		"a truncated report": {func(_ *protocol.Host, i *protocol.HostImages) { i.Cut = true }, true},
	} {
		told := Images{}
		h := stocked("w1", 0, told)
		c.change(h, told["w1"])
		if chosen, refusals := Place(b, []*protocol.Host{h}, told); (chosen != nil) != c.taken {
			t.Errorf("%s: %+v", what, refusals)
		}
	}
	h := stocked("w1", 0, Images{})
	if chosen, refusals := Place(b, []*protocol.Host{h}, nil); chosen != nil ||
		!strings.Contains(refusals[0].Reason, "not reported its images yet") {
		t.Errorf("without a report, the refusals are %+v", refusals)
	}
	b.Resuming, b.HostID = true, h.HostID
	if chosen, refusals := Place(b, []*protocol.Host{h}, nil); chosen == nil {
		t.Errorf("a resume, which needs no images, is refused: %+v", refusals)
	}
}

// The image may be misspelt, so the sandbox fails unless some host may still get the image.
func TestASandboxDoesNotWaitForAnImageThatNoHostWillGet(t *testing.T) {
	app := func(pull string) *protocol.Sandbox {
		return &protocol.Sandbox{State: protocol.StatePending, Spec: protocol.SandboxSpec{Image: "app", Pull: pull,
			OptionalServices: map[string]protocol.Service{"x": {Image: "misspelt"}}}}
	}
	for what, c := range map[string]struct {
		b       *protocol.Sandbox
		change  func(*protocol.Host, *protocol.HostImages)
		imports []*protocol.WantedImage
		fails   bool
	}{
		"no host has it":   {b: app(protocol.PullNever), fails: true},
		"it may be pulled": {b: app(protocol.PullMissing)},
		"a resume":         {b: &protocol.Sandbox{Resuming: true, HostID: "h-w1", Spec: app(protocol.PullNever).Spec}},
		"a host has it": {b: app(protocol.PullNever),
			change: func(_ *protocol.Host, i *protocol.HostImages) { i.Names = []string{appImage} }},
		"a host that is lost has it": {b: app(protocol.PullNever),
			change: func(h *protocol.Host, i *protocol.HostImages) {
				h.State, i.Names = protocol.HostLost, []string{appImage}
			}},
		"a host has not reported its images yet": {b: app(protocol.PullNever),
			change: func(_ *protocol.Host, i *protocol.HostImages) { i.Listed = false }},
		"a host with an older worker": {b: app(protocol.PullNever),
			change: func(h *protocol.Host, _ *protocol.HostImages) { h.Images = false }},
		"it is in a worker's configuration": {b: app(protocol.PullNever),
			change: func(_ *protocol.Host, i *protocol.HostImages) {
				i.Images = []protocol.HostImage{{Ref: appImage}}
			}},
		"it is imported": {b: app(protocol.PullNever), imports: []*protocol.WantedImage{{Ref: appImage}}},
		"it is imported for the host": {b: app(protocol.PullNever),
			imports: []*protocol.WantedImage{{Ref: appImage, Workers: []string{"w1"}}}},
		"it is imported for another host": {b: app(protocol.PullNever),
			imports: []*protocol.WantedImage{{Ref: appImage, Workers: []string{"w3"}}}, fails: true},
	} {
		told := Images{}
		hosts := []*protocol.Host{stocked("w1", 0, told), stocked("w2", 0, told)}
		if c.change != nil {
			c.change(hosts[0], told["w1"])
		}
		e := ImageUnavailable(c.b, hosts, told, c.imports)
		if (e != nil) != c.fails || e != nil && (e.Reason != protocol.ReasonImageNotFound || e.Field != "spec.image") {
			t.Errorf("%s: %v", what, e)
		}
	}
	if e := ImageUnavailable(app(protocol.PullNever), nil, nil, nil); e != nil {
		t.Errorf("without a host, the error is %v", e)
	}
}

func TestAHostThatHasTheImageIsPreferredWhileItIsNearlyAsEmpty(t *testing.T) {
	told := Images{}
	missing, has, silent := stocked("a", 0, told), stocked("b", 0, told, appImage), host("c", 0)
	b := &protocol.Sandbox{Spec: protocol.SandboxSpec{Image: "app", Memory: 1 << 20}}
	on := func(hosts ...*protocol.Host) string {
		chosen, _ := Place(b, hosts, told)
		return chosen.Worker
	}
	if got := on(missing, has); got != "b" {
		t.Errorf("of two empty hosts, %s is chosen, want b", got)
	}
	has.Slots, missing.Slots, silent.Slots = 100, 100, 100
	has.Sandboxes = 9
	if got := on(missing, has); got != "b" {
		t.Errorf("with 9 of 100 slots taken on b, %s is chosen, want b", got)
	}
	has.Sandboxes = 11
	if got := on(missing, has); got != "a" {
		t.Errorf("with 11 of 100 slots taken on b, %s is chosen, want a", got)
	}
	b.Spec.OptionalServices = map[string]protocol.Service{"x": {Image: "app"}, "y": {Image: "nowhere"}}
	has.Sandboxes = 8
	if got := on(missing, has); got != "a" {
		t.Errorf("with two of three images and 8 of 100 slots taken on b, %s is chosen, want a", got)
	}
	has.Sandboxes = 1
	if got := on(has, silent); got != "c" {
		t.Errorf("%s is chosen, want c, which is emptier and reports no images", got)
	}
}

func TestAnImageOfARegistryThatNoOperatorAllowsIsRefused(t *testing.T) {
	told := Images{}
	byDefault := []string{"docker.io", "public"}
	hosts := []*protocol.Host{stocked("w1", 0, told), stocked("w2", 5, told, "127.0.0.1:5000/there:1"),
		stocked("w3", 7, told)}
	hosts[0].Registries, hosts[1].Registries, hosts[2].Registries = byDefault, byDefault, []string{"10.1.1.1:5000"}
	imports := []*protocol.WantedImage{{Ref: "127.0.0.1:5000/imported:1"}}
	for what, c := range map[string]struct {
		spec  protocol.SandboxSpec
		on    string // worker
		fails string // the field of the error if waiting cannot help
	}{
		"on the host's own registry": {protocol.SandboxSpec{Image: "127.0.0.1:5000/x:1"}, "", "spec.image"},
		"that a host has":            {protocol.SandboxSpec{Image: "127.0.0.1:5000/there:1"}, "w2", ""},
		"that a host has, but must always be pulled": {
			protocol.SandboxSpec{Image: "127.0.0.1:5000/there:1", Pull: protocol.PullAlways}, "", "spec.image"},
		"that is imported":                       {protocol.SandboxSpec{Image: "127.0.0.1:5000/imported:1"}, "", ""},
		"of a registry that one operator allows": {protocol.SandboxSpec{Image: "10.1.1.1:5000/x:1"}, "w3", ""},
		"of a public registry":                   {protocol.SandboxSpec{Image: "ghcr.io/a/b:1"}, "w1", ""},
		"of a service": {protocol.SandboxSpec{Image: "busybox",
			RequiredServices: map[string]protocol.Service{"db": {Image: "10.0.0.1/db:1"}}}, "",
			"spec.required_services.db.image"},
		"of an optional service": {protocol.SandboxSpec{Image: "busybox",
			OptionalServices: map[string]protocol.Service{"db": {Image: "10.0.0.1/db:1"}}}, "w1", ""},
		"by an id that a host has": {protocol.SandboxSpec{Image: "sha256:cafe0123"}, "w1", ""},
		"of no registry":           {protocol.SandboxSpec{Image: "boxfleet.local/d/imported/x:1"}, "", "spec.image"},
	} {
		b := &protocol.Sandbox{State: protocol.StatePending, Spec: c.spec}
		if b.Spec.Pull == "" {
			b.Spec.Pull = protocol.PullMissing
		}
		got := ""
		chosen, refusals := Place(b, hosts, told)
		if chosen != nil {
			got = chosen.Worker
		}
		if got != c.on {
			t.Errorf("an image %s: placed on %q, want %q: %+v", what, got, c.on, refusals)
		}
		e := ImageUnavailable(b, hosts, told, imports)
		if c.fails == "" && e != nil || c.fails != "" &&
			(e == nil || e.Field != c.fails || e.Reason != protocol.ReasonPolicyDenied ||
				e.Code != protocol.PermissionDenied) {
			t.Errorf("an image %s: got the error %v", what, e)
		}
	}
	hosts[1].Registries = nil // an older worker, which tries to pull every image
	if e := ImageUnavailable(&protocol.Sandbox{Spec: protocol.SandboxSpec{Image: "127.0.0.1:5000/x:1"}}, hosts, told,
		nil); e != nil {
		t.Errorf("with an older worker, the error is %v", e)
	}
}
