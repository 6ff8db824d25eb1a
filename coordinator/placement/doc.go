// Package placement chooses the host for a sandbox.
//
//	place.go    Place: the definition. It rates every host, and says why a host refuses.
//	unmet.go    requirements of a spec that a host cannot meet even when it is empty
//	images.go   which images a host has, may pull, or is about to get
//	usage.go    the resources that sandboxes take on a host
//	index.go    Index: finds the host that Place would choose without rating every host
//
// Everything except Index is a pure function of the sandbox, the hosts and their images. To change how a host is
// chosen, change place.go; the property test compares the index with it.
//
// The package imports protocol, spec and imageref.
package placement
