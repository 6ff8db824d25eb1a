// Package coordinator decides: it accepts requests, places sandboxes on hosts, drives everything that has not ended
// towards an end, and answers reads.
//
//	requests ─ requests.go ─ decide.go ────────┐
//	hosts.go ─ scheduler.go ─ placement/ ──────┼─ append to the log ── notify worker, wake scheduler
//	watchdog.go ─ due.go, watchhosts.go ───────┘         │
//	reads.go ◄──────── projection.go ◄───────────────────┘
//
// Any number of coordinators run at once. Each accepts requests and answers reads; one of them holds the scheduler's
// lock and leads (leader.go). Correctness does not depend on there being only one leader: deciding is appending, and
// of two coordinators that decide the same the log takes one.
//
// # State
//
// projection.go folds the event log into three parts:
//
//	readmodel.go        read model: what reads answer from. Handles of living sandboxes, small entries of deleted
//	                    ones, names and ids
//	workingstate.go     working state: what the leader's loops work from. The load of each host, the queue for a
//	                    host, assignments in flight, deadlines (deadlines.go)
//	snapshotbacklog.go  snapshot backlog: what the leader has not stored since it changed
//
// They relate as follows. The log is the truth; a journal folds a history of it, and each fold updates all three parts
// under one lock. The read model and the working state share the handles of living sandboxes; nothing else is in two
// parts. Neither is stored. The leader stores snapshots of the journals that the backlog lists (snapshots.go). A
// coordinator that starts loads the snapshots and follows the log from there, which rebuilds the parts.
//
// execindex knows which exec ids were used, and where in the log the events of past execs are.
//
// # Files
//
//	requests.go, names.go, admission.go  from a request to its first event; names; creates that no host could take
//	gate.go, refusals.go                 holds requests back while the log takes nothing; repeated refusals
//	decide.go, decidehost.go             the decisions. Pure
//	reads.go and others                  explain.go, logreads.go, pastexecs.go, listdeleted.go answer one read each
//	hosts.go, images.go, clocks.go       what workers report
//	scheduler.go                         the leader: assigns hosts
//	watchdog.go                          the leader: deadlines, late execs, silent hosts, purges
//	intents.go                           the leader: cordon, drain, forget
//	notify.go                            the leader: notifies workers again
//	snapshots.go, compact.go             the leader: keep starts fast and the log small
//	reservations.go                      the leader: ends ids that were reserved and not used
//	outputbudget.go, blobs.go            the leader: bounds stored output, keeps uploads
//
// The package imports protocol, spec, jetstream, imageref, seldom, wake, backoff, coordinator/placement and
// coordinator/execindex, never worker.
package coordinator
