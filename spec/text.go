package spec

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// ParsePort reads the short form of a port, [HOST:]CONTAINER[/PROTOCOL].
func ParsePort(text string) (protocol.Port, error) { return readPort(text) }

// ParseMount reads the short form of a mount, SOURCE:TARGET[:ro|rw].
func ParseMount(text string) (protocol.Mount, error) { return readMount(text) }

// ParseTmpfs reads the short form of a file system in memory, TARGET[:SIZE].
func ParseTmpfs(text string) (protocol.Tmpfs, error) { return readTmpfs(text) }

// ParseNetwork reads the short form of a network: internet, none, or the ranges that are allowed,
// separated by commas.
func ParseNetwork(text string) (protocol.Network, error) {
	if strings.ContainsAny(text, "/,") {
		return protocol.Network{Mode: protocol.NetworkAllow, Allow: strings.Split(text, ",")}, nil
	}
	return readNetwork(text)
}
