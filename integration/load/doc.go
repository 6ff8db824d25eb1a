// Load measures a fleet of many hosts on one machine: how fast sandboxes are placed, what a coordinator costs, and how
// long the fleet takes to recover from a restart of NATS or from the death of the scheduling coordinator.
//
//	go run ./integration/load -workers 1000 -sandboxes 10000 [-rate 100] [-living 100000] [-restart] [-failover] …
//
//	load: SDK clients, a reader of the log ──TCP──► a NATS server, with fsync: a process
//	                                                 ▲            ▲
//	                         coordinators: processes ┘            └ simulated workers: one or a few processes
//
// Every process is this binary again, in a role. The NATS server and the coordinators are real. A simulated worker
// (host.go, box.go) does not use package worker, which needs an Engine. On the wire it does the same as a real worker,
// on its own connection and through the same parts of package jetstream: it takes and renews its host's lock,
// registers, reports its images, sends heartbeats, listens for work, keeps a journal per sandbox, and appends events
// under its lock. A timer replaces its engine. Real and simulated workers both use worker/progress, which decides what
// is appended and in how many messages.
//
// Times are the store's time stamps. At the end load prints milestones, and goals with their results. It exits with 1
// if something went wrong: a sandbox failed or was placed twice, a host was lost, or a process logged an error. Goals
// count only in runs of the size that they were set for. With -short, load checks that everything works, not how fast
// it works.
package main
