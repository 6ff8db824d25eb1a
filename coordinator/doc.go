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
// projection.go holds the living sandboxes, with indexes that are kept as they change (sandboxindex.go, deadlines.go,
// hostindex.go); of those that are over it holds next to nothing (over.go). watchdog.go, telling.go and reservations.go
// are what the leader does besides scheduling, each part by itself.
//
// execids.go knows which ids of execs were used, and where in the log execs are that are over; pastexecs.go reads
// them there. Neither reads a history for it.
//
// snapshots.go and compact.go keep starts and the log small: the leader stores folds beside the log, and moves what
// is old of long histories out of it.
//
// names.go says which sandbox a name means, and takes names for creates; idindex.go finds ids by their beginning.
// beforehand.go refuses a create before anything is taken for it.
//
// gate.go holds requests back while the log takes none of what they lead to.
//
// decide.go and place.go are pure. The package imports protocol, spec, jetstream, imageref and seldom, never worker.
package coordinator
