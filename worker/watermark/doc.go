// Package watermark decides whether a host is too full to take more sandboxes.
//
//	watermark.go  the limits, and the limit that the host has reached
//	host.go       how much memory and how many processes the host uses
//
// The package imports protocol. It does not import worker.
package watermark
