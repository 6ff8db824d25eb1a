// Package spec parses sandbox specs from YAML and merges layers of them.
//
//	YAML ── Parse ──> Document ── Override ──> Spec ── Validate, Resolve (protocol)
//	           │                      │
//	           └ interpolation        └ Merge, the one rule for layers:
//	                                    tenant's defaults < YAML < explicit parameters;
//	                                    OnWorker puts a worker's defaults below them all
//
// The fields are the fields of protocol.SandboxSpec, under their wire names. They may have the short forms of Compose.
// Anything else is rejected with its line, column and field. Parsing untrusted text uses bounded memory and time.
//
// The package imports protocol and a YAML library. It reads neither files nor the environment.
package spec
