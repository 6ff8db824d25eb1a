// Package disk watches the free space on a host's disks, and stops the sandbox that would fill a disk.
//
//	watch.go    reads the free space four times a second and decides ◄── room.go: how little free space is too little
//	   │
//	   ├─ sample.go   measures how much disk space each sandbox uses, with worker/diskuse
//	   ├─ writers.go  finds the sandbox that writes the most; pure
//	   ├─ stop.go     kills the sandbox's processes, and writes the reason into the sandbox's directory
//	   └─ reserve.go  holds back space that the worker can use when the disk is full
//
// The watch needs neither the log nor the host's lock. So it also works while NATS is down, for example because the
// same disk is full. The watch kills only processes that it was told to track.
//
// The package imports protocol and worker/diskuse.
package disk
