// Package doctor says what is wrong with a fleet, and what to do about each problem. It is pure: `boxfleet doctor`
// gathers the facts, and [Examine] turns them into findings.
//
//	facts.go     what is known about the fleet
//	examine.go   the report on all facts
//	access.go    findings about the client, its credentials and its connection
//	storage.go   findings about NATS, coordinators, clocks and versions
//	hosts.go     findings about hosts
//	owed.go      findings about work that is late
//	catalog.go   every code, with its severity and its remedy
//
// The package imports protocol and rights.
package doctor
