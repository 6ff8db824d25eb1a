package spec

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// ParsePort parses the short form of a port, [HOST:]CONTAINER[/PROTOCOL].
func ParsePort(text string) (protocol.Port, error) { return readPort(text) }

// ParseMount parses the short form of a mount, SOURCE:TARGET[:ro|rw].
func ParseMount(text string) (protocol.Mount, error) { return readMount(text) }

// ParseTmpfs parses the short form of an in-memory file system, TARGET[:SIZE].
func ParseTmpfs(text string) (protocol.Tmpfs, error) { return readTmpfs(text) }

// ParseNetwork parses the short form of a network: internet, none, or a comma-separated list of allowed ranges.
func ParseNetwork(text string) (protocol.Network, error) {
	if strings.ContainsAny(text, "/,") {
		return protocol.Network{Mode: protocol.NetworkAllow, Allow: strings.Split(text, ",")}, nil
	}
	return readNetwork(text)
}
