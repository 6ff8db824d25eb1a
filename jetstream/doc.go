// Package jetstream is where Boxfleet keeps things: the event log, the registry of ids, leases,
// queues, output, the table of hosts. It is the only package that knows NATS; the embedded server
// is in its sub-package embedded, so that the SDK does not link a server.
//
//	Conn ── EventLog ── Journal   append with compare-and-set, replay, follow, group commit
//	   ├─── Compact               older parts of long histories, as segments in the object store
//	   ├─── Reserve               ids that are never used again
//	   ├─── TakeName              names, each of one sandbox at a time
//	   ├─── Lease                 host locks and the scheduler's, with token and trust window
//	   ├─── Now                   the store's time, by which events are stamped and compared
//	   ├─── requests              a queue; each is decided, or delivered again
//	   ├─── work                  what a worker is told, which may be lost and is told again
//	   ├─── output                chunks with byte offsets
//	   └─── hosts, heartbeats, blobs, snapshots, the read service
//
// It imports protocol and nothing else of this module. Every error that leaves it is a
// *protocol.Error, translated in errors.go.
package jetstream
