// Package secrets gets the values that a spec, a service or an exec names.
//
//	spec ──► Named.Getter ──► a coordinator, for each field ──► supervise.Link ──► supervisor
//
// Values are in the worker's memory from the answer until the supervisor has them. The worker stores none.
//
// The package imports protocol and supervisor/control.
package secrets
