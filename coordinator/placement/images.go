package placement

import (
	"maps"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
)

// Images has the workers' reports about the images of their hosts, by worker name.
type Images map[string]*protocol.HostImages

// The method "of" returns the images that a host's current worker process has reported, or nil if this process has not
// reported yet. The report of an earlier process may be out of date.
func (i Images) of(h *protocol.Host) *protocol.HostImages {
	reported := i[h.Worker]
	if reported == nil || !reported.Listed || reported.Instance != h.Instance {
		return nil
	}
	return reported
}

// neededImage is one image of a spec. A sandbox can start without its optional images.
type neededImage struct {
	field, ref string
	optional   bool
}

func neededImages(s *protocol.SandboxSpec) []neededImage {
	all := []neededImage{{field: "spec.image", ref: s.Image}}
	for _, name := range slices.Sorted(maps.Keys(s.RequiredServices)) {
		field := "spec.required_services." + name + ".image"
		all = append(all, neededImage{field: field, ref: s.RequiredServices[name].Image})
	}
	for _, name := range slices.Sorted(maps.Keys(s.OptionalServices)) {
		all = append(all, neededImage{ref: s.OptionalServices[name].Image, optional: true})
	}
	return all
}

// ImageRefs returns the references of all images that a spec names.
func ImageRefs(s *protocol.SandboxSpec) (refs []string) {
	for _, n := range neededImages(s) {
		refs = append(refs, n.ref)
	}
	return refs
}

// imageRefusal returns why a host refuses a sandbox for one of its images: the host neither has the image nor may pull
// it. It returns "" if the host refuses no image. The host may get the image later, from an import or from its
// operator.
func imageRefusal(s *protocol.SandboxSpec, h *protocol.Host, images Images) string {
	if !h.Images { // an older worker does not report images; the create then fails if an image is missing
		return ""
	}
	reported := images.of(h)
	for _, n := range neededImages(s) {
		if e := missingImage(s, h, reported, n); e != nil {
			return fieldMessage(e)
		}
	}
	return ""
}

// missingImage returns the error for an image that a host neither has nor may pull. Otherwise, and for an optional
// image, it returns nil. reported is nil until the host has reported its images.
func missingImage(
	s *protocol.SandboxSpec, h *protocol.Host, reported *protocol.HostImages, n neededImage,
) *protocol.Error {
	refused := s.Pull != protocol.PullNever && !mayPull(h, n.ref)
	switch {
	case n.optional, s.Pull != protocol.PullNever && !refused:
		return nil
	case refused && s.Pull == protocol.PullAlways:
	case reported == nil && refused:
		return unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, n.field,
			"%s pulls nothing from the registry of %s, and has not reported its images yet", h.Worker, n.ref)
	case reported == nil:
		return unmetError(protocol.NotFound, protocol.ReasonImageNotFound, n.field,
			"spec.pull is never, and the host has not reported its images yet")
	case mayHave(reported, n.ref):
		return nil
	case !refused:
		return unmetError(protocol.NotFound, protocol.ReasonImageNotFound, n.field,
			"the host has no image %s, and spec.pull is never", n.ref)
	}
	return unmetError(protocol.PermissionDenied, protocol.ReasonPolicyDenied, n.field,
		"the operator of %s does not allow pulls from the registry of %s (worker.images.registries)", h.Worker, n.ref)
}

// mayPull reports whether a host's operator allows pulls from an image's registry. An older worker does not report its
// registries, and pulls from all registries.
func mayPull(h *protocol.Host, ref string) bool {
	full, err := imageref.Full("", ref)
	return err != nil || len(h.Registries) == 0 || imageref.TrustOf(h.Registries, full) != imageref.Refused
}

// ImageUnavailable returns an error if a sandbox needs an image that will never be on any host: no host has the image
// or may pull it, and neither an import nor a worker's configuration will bring it. It returns nil if waiting may help.
func ImageUnavailable(
	b *protocol.Sandbox, hosts []*protocol.Host, images Images, imports []*protocol.WantedImage,
) *protocol.Error {
	var missing *protocol.Error
	for _, h := range hosts {
		s, err := SpecOn(b, h)
		if err != nil {
			continue
		}
		reported := images.of(h)
		if b.Resuming || !h.Images || reported == nil {
			return nil
		}
		e := neverPresent(s, h, reported, imports)
		switch {
		case e == nil:
			return nil
		case e.Reason == protocol.ReasonImageNotFound:
			e.Message = strings.Replace(e.Message, "the host has no image", "no host has an image", 1)
			missing = e
		case missing == nil:
			missing = e
		}
	}
	return missing
}

// neverPresent returns the error for the first image that a host never gets: the host neither has it nor may pull it,
// and is not about to get it. It returns nil if there is no such image.
func neverPresent(
	s *protocol.SandboxSpec, h *protocol.Host, reported *protocol.HostImages, imports []*protocol.WantedImage,
) *protocol.Error {
	for _, n := range neededImages(s) {
		e := missingImage(s, h, reported, n)
		if e != nil && (s.Pull == protocol.PullAlways || !arriving(n.ref, h, reported, imports)) {
			return e
		}
	}
	return nil
}

// arriving reports whether a host is about to get an image, by an import or by its worker's configuration.
func arriving(
	ref string, h *protocol.Host, reported *protocol.HostImages, imports []*protocol.WantedImage,
) bool {
	full, err := imageref.Full("", ref)
	if err != nil {
		return false
	}
	imported := slices.ContainsFunc(imports, func(w *protocol.WantedImage) bool {
		return w.Ref == full && (len(w.Workers) == 0 || slices.Contains(w.Workers, h.Worker))
	})
	return imported || slices.ContainsFunc(reported.Images, func(i protocol.HostImage) bool { return i.Ref == full })
}

// imagesPresent returns the share of a sandbox's images that a host has, from 0 to 1. A host that reports no images
// counts as having all of them.
func imagesPresent(s *protocol.SandboxSpec, h *protocol.Host, images Images) float64 {
	reported := images.of(h)
	if reported == nil {
		return 1
	}
	needed, present := neededImages(s), 0
	for _, n := range needed {
		if mayHave(reported, n.ref) {
			present++
		}
	}
	return float64(present) / float64(len(needed))
}

// MayMean reports whether a reference in a spec may mean an image, which is given by its full reference or its id.
func MayMean(image, ref string) bool {
	if id, isID := strings.CutPrefix(image, "sha256:"); isID {
		image = idPrefix + id
	}
	return mayHave(&protocol.HostImages{Names: []string{image}}, ref)
}

// idPrefix begins the full form of an image id.
const idPrefix = "docker.io/library/sha256:"

// mayHave reports whether a host has an image under a name or an id prefix, as the host's engine would resolve it. It
// also returns true if the report is truncated and may therefore lack the image.
func mayHave(reported *protocol.HostImages, ref string) bool {
	full, err := imageref.Full("", ref)
	if err != nil || reported.Cut { // the worker refuses an invalid reference
		return true
	}
	if _, found := slices.BinarySearch(reported.Names, full); found {
		return true
	}
	id := idPrefix + strings.TrimPrefix(ref, "sha256:")
	i, _ := slices.BinarySearch(reported.Names, id)
	return i < len(reported.Names) && strings.HasPrefix(reported.Names[i], id)
}
