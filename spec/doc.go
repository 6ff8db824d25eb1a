// Package spec reads what a sandbox is made of from YAML, and puts several such specs together.
//
//	YAML ── Parse ──> Document ── Override ──> Spec ── Validate, Resolve (protocol)
//	           │                      │
//	           └ interpolation        └ Merge, the one rule for layers:
//	                                    tenant's defaults < YAML < explicit parameters;
//	                                    OnWorker puts a worker's defaults below them all
//
// The fields are those of protocol.SandboxSpec under their names on the wire, with short forms where
// Compose has them. Everything else is refused with its line, its column and its field. Whatever the
// text says, reading it costs bounded memory and time.
//
// The package imports protocol and a YAML library, reads no file and no environment.
package spec
