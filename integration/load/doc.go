// Load measures a fleet of many hosts on one machine: how fast sandboxes are placed, what a coordinator costs,
// and how long the fleet takes to find itself again after a restart of NATS or the end of the coordinator that
// schedules.
//
//	go run ./integration/load -workers 1000 -sandboxes 10000 [-rate 100] [-living 100000] [-restart] [-failover] …
//
//	load: SDK clients, a reader of the log ──TCP──► a NATS server, with fsync: a process
//	                                                 ▲            ▲
//	                         coordinators: processes ┘            └ simulated workers: one or a few processes
//
// Everything is this binary again, in a role. NATS server and coordinators are the real ones. A simulated worker
// (host.go, box.go) is not package worker: that one is made around an Engine. It does the same on the wire, on a
// connection of its own and through the same parts of package jetstream: it takes and renews the lock of its
// host, registers, says which images it has, beats, listens for work, keeps a journal for each sandbox, and
// appends what becomes of it, all under the lock's trust. Only its engine is a timer. What package worker appends, and
// in how many messages, is in worker/progress, which both use.
//
// When things happened is read from the store's time stamps. At the end it prints milestones, and goals beside
// what came of them, and exits with 1 where something went wrong: a sandbox that failed or was placed twice, a
// host that was lost, an error in a log. Goals count where the run has the size that
// they are for; -short checks that all works, not how fast.
package main
