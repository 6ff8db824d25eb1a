// Package watermark limits how full a host may be and still take sandboxes.
//
//	watermark.go  the limits, and the limit that the host has reached
//	host.go       how much memory and how many processes the host uses
//
// The package imports protocol. It does not import worker.
package watermark
