// Package jetstream is Boxfleet's storage in NATS JetStream. It is the only package that imports the NATS client. The
// embedded server is in the sub-package embedded, so that the SDK does not link a server.
//
//	Conn                    everything on one connection; it embeds all parts and has their methods
//	 ├─── EventLog          append by compare-and-set, follow the event log
//	 ├─── Writers           which key belongs to which writer, and since when signatures are required
//	 ├─── Histories         read the history of a sandbox from its segments and the event log
//	 ├─── Journals          one writer's view of one history: fold, decide, group commit
//	 ├─── Snapshots         the folded states of sandboxes, and the coordinators' checkpoint
//	 ├─── Compactor         moves older messages to segments in the object store, purges deleted histories
//	 ├─── ExecIndex         finds the execs of a sandbox
//	 ├─── Registry          ids, which are never used twice, and names, each held by one sandbox at a time
//	 ├─── Leases            leases with a fencing token and a trust window, for hosts and the scheduler
//	 ├─── Hosts             the table of hosts, heartbeats, operator intent
//	 ├─── Notifications     notifications to workers and the status of coordinators; both may be lost
//	 ├─── RequestQueue      requests, their answers and the dead letters
//	 ├─── Queries           the read service: serve and send queries
//	 ├─── OutputLog         the output of execs: publish, follow, read in pages
//	 ├─── ImageStore        imported images; which images hosts should have, and which they have
//	 ├─── BlobStore         uploads
//	 ├─── Streams           opens streams of bytes to workers, and serves those of a worker
//	 ├─── StoreHealth       leaders, replicas, room and disk; recovers an event log that accepts no writes
//	 ├─── Provisioner       makes and updates the streams and buckets
//	 ├─── Growth            gives the streams and buckets more replicas
//	 │
//	 │    and, used inside this package only:
//	 ├─── segments          messages that were moved out of the event log, and their manifests
//	 ├─── quorum            whether a majority of the NATS servers can be reached
//	 ├─── objectStore       objects in chunks
//	 ├─── streams           messages of streams and keys of buckets
//	 └─── core              the store's time (Now), the deployment, and the connection that all parts share
//
// The package imports only six packages of Boxfleet: protocol, rights, seal, stream, backoff and wake. Every error that
// it returns is a *protocol.Error, translated in errors.go, or the error of a context.
package jetstream
