package imageref

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// PublicRegistries stands, in a list of registries, for those at public addresses.
	PublicRegistries = "public"

	// DockerHub is the registry of references that name none.
	DockerHub = "docker.io"

	// LocalRegistry is the registry of names that workers give to images by themselves. There is none.
	LocalRegistry = "boxfleet.local"
)

// Trust says how images of a registry are pulled.
type Trust int

// What a list of registries says of one.
const (
	Refused Trust = iota // not at all
	Checked              // only through connections to public addresses
	Trusted              // by the Engine, which goes where the registry sends it
)

// TrustOf says what a list, of [CheckRegistries], says of the registry of a full reference. Names and
// addresses that only the host itself or its own network can mean are not public, however they resolve.
func TrustOf(registries []string, full string) Trust {
	registry := Registry(full)
	switch {
	case registry == LocalRegistry:
		return Refused
	case slices.Contains(registries, registry):
		return Trusted
	case !slices.Contains(registries, PublicRegistries) || isLocal(registry):
		return Refused
	}
	return Checked
}

// Registry is the registry of a full reference, host or host:port, in lower case.
func Registry(full string) string {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return ""
	}
	return strings.ToLower(reference.Domain(named))
}

// CheckRegistries puts a list of registries into the form of [TrustOf]: host or host:port as in
// references, docker.io for Docker Hub, and [PublicRegistries]. It fails with invalid_argument, naming
// the field.
func CheckRegistries(field string, registries []string) ([]string, error) {
	all := make([]string, 0, len(registries))
	for _, r := range registries {
		r = strings.ToLower(r)
		if r != PublicRegistries {
			full, err := Full(field, r+"/x")
			if err != nil || Registry(full) != r && !(r == "index.docker.io" && Registry(full) == DockerHub) {
				return nil, protocol.Invalid(field, "must be a host or host:port as in references of images, or %q; got %.80q", PublicRegistries, r)
			}
			r = Registry(full)
		}
		if r == LocalRegistry {
			return nil, protocol.Invalid(field, "%s is no registry, but the names that workers give to imported images", r)
		}
		all = append(all, r)
	}
	return all, nil
}

// isLocal says whether a registry's name is an address that is not public, or a name that is the host's
// own or of its own network by convention.
func isLocal(registry string) bool {
	host := registry
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if strings.HasPrefix(host, "[") {
		a, err := netip.ParseAddr(strings.Trim(host, "[]"))
		return err != nil || !IsPublic(a)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return !IsPublic(a)
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == "" || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") { // 127.1, 0x7f.1: an address in another form
		return true
	}
	return slices.Contains([]string{"localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "arpa"}, last) || last == host
}
