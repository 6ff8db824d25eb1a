// Package kernel deals with what the kernel has only once for all sandboxes of a host, and does not limit by
// container.
//
//	limits.go     reports limits that are too low for the host's slots
//	terminals.go  limits the terminals of each container
//	watchers.go   ends processes that hold all file watchers
//
// The package imports protocol.
package kernel
