// Package execindex is the index of all exec ids that sandboxes have used. It also says where in the event log the
// events of these execs are. No lookup reads a whole history, except to rebuild a lost index.
//
//	index.go    the index in memory: the ids since the index was last stored, and filters for all earlier ids
//	lookup.go   reads heads and pages of the stored index; stores the index; rebuilds a lost index
//	list.go     lists all execs of a sandbox, the newest first
//	read.go     reads one exec by the records of its events
//	filter.go   Bloom filters for pages
//	cache.go    a cache with a limit in bytes
//
// The stored index is in a bucket: for each sandbox a head with the newest entries, and pages with all other entries.
// Every coordinator follows the log and keeps in memory the entries that came after the stored index. The leader adds
// these entries to the stored index.
//
// The package imports protocol and jetstream.
package execindex
