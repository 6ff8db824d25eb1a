// Package protocol is what Boxfleet says: the wire types, the subjects, the rules for ids and
// specs, the error codes, the codec, and the state machines of sandbox and exec.
//
//	request --> accept --> events --> State.Apply --> Sandbox, Exec
//	            (coordinator)  (coordinator, worker)   (everybody, the same fold)
//
// The package is pure: no clock, no randomness, no I/O, no logger. It imports nothing of this
// module, so that every other package, and a client in another language that reads it as a
// reference, can rely on it alone.
//
// The wire schema only grows. Every envelope carries [Version]; the golden files below testdata
// pin each version's bytes.
package protocol

// Version is the version of the wire schema, carried as "v" in every envelope. A reader accepts
// envelopes from 1 to Version; a newer one is refused with
// [FailedPrecondition] and reason "unsupported_version".
const Version = 1

// DefaultTenant is the tenant of a client that names none.
const DefaultTenant = "default"
