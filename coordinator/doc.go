// Package coordinator decides: it accepts requests, places sandboxes on hosts, enforces deadlines, and answers reads.
//
//	requests ─ requests.go ─ decide.go ────────┐
//	hosts.go ─ scheduler.go ─ placement/ ──────┼─ append to the log ── notify worker, wake scheduler
//	watchdog.go ─ due.go, watchhosts.go ───────┘         │
//	reads.go ◄──────── projection.go ◄───────────────────┘
//
// Any number of coordinators run at once. Each accepts requests and answers reads; one of them holds the scheduler's
// lock and leads (leader.go). Correctness does not depend on there being only one leader: a decision takes
// effect when it is appended, and the log accepts one of two competing appends.
//
// # State
//
// projection.go folds the event log into three parts:
//
//	readmodel.go        read model: the data that reads are answered from. Handles of living sandboxes, small
//	                    entries for deleted sandboxes, names and ids
//	workingstate.go     working state: the data that the leader's loops work on. The load of each host, the
//	                    sandboxes that wait for a host, assignments in flight, deadlines (deadlines.go)
//	snapshotbacklog.go  snapshot backlog: the sandboxes that have changed since their last stored snapshot
//
// The log is the truth. A journal folds one history of the log, and each fold updates all three parts under one lock.
// The read model and the working state share the handles of living sandboxes; the parts share nothing else. The read
// model and the working state are never stored. The leader stores snapshots of the journals that the backlog lists
// (snapshots.go). To rebuild the parts, a new coordinator loads the snapshots and follows the log from there.
//
// execindex is the index of the exec ids that were used. It also says where in the log the events of past execs are.
//
// # Files
//
//	requests.go, names.go, admission.go  from a request to its first event; names; creates that no host could take
//	gate.go, refusals.go                 hold requests back while the log accepts no appends; repeat refusals
//	decide.go, decidehost.go             the decisions. Pure
//	reads.go                             the reads; explain.go, logreads.go, pastexecs.go, listdeleted.go: one read each
//	hosts.go, images.go, clocks.go       what workers report
//	scheduler.go                         the leader: assigns hosts
//	watchdog.go                          the leader: deadlines, late execs, silent hosts, purges
//	intents.go                           the leader: cordon, drain, forget
//	quotas.go, quotause.go               quotas: the leader's answers; what each tenant uses
//	quotaclaims.go, quotauploads.go      room for requests in progress; stored uploads
//	secrets.go, secrettable.go           sets and removes secrets; the names and versions of all secrets
//	unseal.go, sealedto.go               gives workers the values of their specs; what needs which fleet key
//	notify.go                            the leader: notifies workers again
//	snapshots.go, compact.go             the leader: keep restarts fast and the log small
//	reservations.go                      the leader: ends ids that were reserved but never used
//	outputbudget.go, blobs.go            the leader: bounds stored output, keeps uploads
//
// The package imports protocol, spec, seal, jetstream, imageref, seldom, wake, backoff, coordinator/placement and
// coordinator/execindex, never worker.
package coordinator
