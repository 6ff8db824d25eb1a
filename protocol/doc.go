// Package protocol defines what Boxfleet sends and stores: the wire types, subjects, rules for ids and specs,
// error codes, codec, and the state machines of sandboxes and execs.
//
//	request --> accept --> events --> State.Apply --> Sandbox, Exec
//	            (coordinator)  (coordinator, worker)   (everyone, the same fold)
//
// The package is pure: no clock, no randomness, no I/O, no logger. It imports nothing of this module, so every
// other package can depend on it, and a client in another language can use it as its reference.
//
// The wire schema only grows. Every envelope carries [Version]; the golden files in testdata pin the bytes of
// each version.
package protocol

// Version is the version of the wire schema, carried as "v" in every envelope. Readers accept versions 1 to
// Version and reject others with [FailedPrecondition], reason "unsupported_version".
const Version = 1

// OldestVersion is the oldest version of the wire schema that this program still reads and writes, 1 to [Version].
const OldestVersion = 1

// DefaultTenant is the tenant of a client that does not name one.
const DefaultTenant = "default"
