// Package disk watches the free space on a host's disks, and stops the sandbox that would fill one.
//
//	watch.go    reads the free space four times a second and decides ◄── room.go: how little is too little
//	   │
//	   ├─ sample.go   measures what each sandbox has on the disk, with worker/diskuse
//	   ├─ writers.go  finds the sandbox that writes the most; pure
//	   ├─ stop.go     kills its processes, and writes the reason into its directory
//	   └─ reserve.go  space that the worker keeps for itself, for a full disk
//
// The watch needs neither the log nor the host's lock. It therefore also works while NATS is down, perhaps because
// the same disk is full. It kills only processes that it was told to track.
//
// The package imports protocol and worker/diskuse.
package disk
