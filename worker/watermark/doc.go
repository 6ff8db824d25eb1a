// Package watermark says how full a host may be and still take sandboxes.
//
//	watermark.go  the limits, and which of them the host has reached
//	host.go       what the host uses: disks, memory, processes
//
// The package imports protocol. It does not import worker.
package watermark
