// Package kernel deals with resources that all sandboxes of a host share, and that the kernel does not limit for each
// container.
//
//	limits.go     reports kernel limits that are too low for the host's number of sandboxes
//	terminals.go  limits the number of terminals in each container
//	watchers.go   ends processes of the sandbox that has used up the file watchers
//
// The package imports protocol.
package kernel
