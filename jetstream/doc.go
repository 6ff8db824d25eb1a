// Package jetstream stores everything that Boxfleet stores in NATS JetStream. It is the only package that imports the
// NATS client. The embedded server is in the sub-package embedded, so that the SDK does not link a server.
//
//	Conn ── Append, FollowEvents   the event log: append by compare-and-set, follow
//	   ├─── Journal                one writer's view of one history: fold, decide, group commit
//	   ├─── ReadHistory, ReadEvents
//	   ├─── Compact, PurgeHistory  segments of older messages in the object store
//	   ├─── WriteSnapshot, Checkpoint, StoreExecs
//	   ├─── ReserveSandbox         ids, which are never used twice
//	   ├─── TakeName               names, each held by one sandbox at a time
//	   ├─── AcquireHost            leases with a fencing token and a trust window, for hosts and the scheduler
//	   ├─── Now                    the store's time, which events carry
//	   ├─── Submit, Requests       the request queue and its dead letters
//	   ├─── Tell, Work             notifications for workers, which may be lost and are repeated
//	   ├─── PublishOutput, OutputPage
//	   ├─── RegisterHost, Beat, ChangeHostWish
//	   ├─── PutBlob, WantImage     uploads and imported images
//	   ├─── ServeReads, Query      the read service
//	   └─── Provision, Grow, Storage, WatchStore
//
// Of this module it imports protocol, backoff and wake. Every error that it returns is a *protocol.Error, translated in
// errors.go, or the error of a context.
package jetstream
