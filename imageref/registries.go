package imageref

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// PublicRegistries, as an entry of a list of registries, means every registry at a public address.
	PublicRegistries = "public"

	// DockerHub is the registry of references that name no registry.
	DockerHub = "docker.io"

	// LocalRegistry is the registry in the names that workers give to images; see [Local]. No such registry exists.
	LocalRegistry = "boxfleet.local"
)

// Trust is how images of a registry may be pulled.
type Trust int

// The levels of trust.
const (
	Refused Trust = iota // its images must not be pulled
	Checked              // its images may be pulled, through connections to public addresses only
	Trusted              // the engine may pull its images, and follow the registry's redirects to any address
)

// TrustOf returns the trust in the registry of a full reference according to a list from [CheckRegistries]. It
// refuses names and addresses that are local to the host or its network unless the list contains them.
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

// Registry returns the registry of a full reference, as host or host:port in lower case, or "" if the text is not a
// reference.
func Registry(full string) string {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return ""
	}
	return strings.ToLower(reference.Domain(named))
}

// CheckRegistries normalizes a list of registries for [TrustOf]. Entries are host or host:port as in
// references, docker.io for Docker Hub, or [PublicRegistries]. Errors: invalid_argument with the given field.
func CheckRegistries(field string, registries []string) ([]string, error) {
	all := make([]string, 0, len(registries))
	for _, r := range registries {
		r = strings.ToLower(r)
		if r != PublicRegistries {
			full, err := Full(field, r+"/x")
			if err != nil || Registry(full) != r && !(r == "index.docker.io" && Registry(full) == DockerHub) {
				return nil, protocol.Invalid(field,
					"must be a host or host:port as in image references, or %q; got %.80q", PublicRegistries, r)
			}
			r = Registry(full)
		}
		if r == LocalRegistry {
			return nil, protocol.Invalid(field, "%s is not a registry; workers use it in the names of imported images", r)
		}
		all = append(all, r)
	}
	return all, nil
}

// localDomains are top-level domains that by convention are not public.
var localDomains = []string{"localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "arpa"}

// isLocal reports whether a registry is at a non-public address, or has a name that by convention belongs to
// the host or its network.
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
	if last == "" || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return true // an address in another notation, such as 127.1 or 0x7f.1
	}
	return last == host || slices.Contains(localDomains, last)
}
