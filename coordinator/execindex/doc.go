// Package execindex knows the ids of all execs that sandboxes ever had, and where in the event log their events are.
// Lookups read no whole history, except to rebuild a lost index.
//
//	index.go    what memory knows: the ids since the index was stored last, filters for everything before
//	lookup.go   reads heads and pages of the stored index; stores it; rebuilds a lost one
//	list.go     lists all execs of a sandbox, the newest first
//	read.go     reads one exec by the records of its events
//	filter.go   Bloom filters for pages
//	cache.go    a cache that is bounded by bytes
//
// The stored index is in a bucket: a head per sandbox with its newest entries, and pages with the others. Every
// coordinator follows the log and so keeps in memory what came after the stored index; the leader stores it.
//
// The package imports protocol and jetstream.
package execindex
