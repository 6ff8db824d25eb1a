// Package coordinator is what is decided: it accepts requests, places sandboxes on hosts, watches
// over everything that has not ended, and answers reads.
//
//	requests ─ accept.go ─ decide.go ──┐
//	hosts.go ─ scheduler.go ─ place.go ┼─ append to the log ── tell the worker
//	watchdog.go ───────────────────────┘         │
//	reads.go ◄──────── projection.go ◄───────────┘
//
// Any number of coordinators run at once. Each accepts requests and answers reads; one of them
// holds the scheduler's lock, and runs scheduler.go and watchdog.go. Nothing depends on there being
// only one: deciding is appending, and of two that decide the same the log takes one.
//
// snapshots.go and compact.go keep starts and the log small: the leader stores folds beside the log, and moves what
// is old of long histories out of it.
//
// gate.go holds requests back while the log takes none of what they lead to.
//
// decide.go and place.go are pure. The package imports protocol, spec, jetstream and imageref, never worker.
package coordinator
