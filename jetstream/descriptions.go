package jetstream

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// described is the prefix of descriptions that Boxfleet wrote. A description without this prefix was written by an
// operator, and Boxfleet keeps it.
const described = "Boxfleet: "

// descriptions tell operators who use NATS's own tools what each stream and bucket contains.
var descriptions = map[string]string{
	protocol.StreamRequests: "requests that wait for a coordinator",
	protocol.StreamEvents:   "the histories of sandboxes: the source of truth",
	protocol.StreamLogs:     "output of execs, services and commands of sandboxes",
	protocol.StreamDead:     "requests that could not be processed, with the reason",
	protocol.StreamWriters:  "which key belongs to which coordinator or worker",

	"KV_" + protocol.BucketIDs:       "sandbox ids that were ever used",
	"KV_" + protocol.BucketNames:     "which sandbox has a name, or had it last",
	"KV_" + protocol.BucketExecIDs:   "where the log has the events of each exec",
	"KV_" + protocol.BucketSandboxes: "snapshots of sandboxes, folded from their histories",
	"KV_" + protocol.BucketImages:    "which images hosts should have, and which they have",
	"KV_" + protocol.BucketHosts:     "what operators want of hosts: cordon, drain, forget",
	"KV_" + protocol.BucketWorkers:   "hosts, as their workers describe them",
	"KV_" + protocol.BucketLocks:     "which worker may change which host: leases",
	"KV_" + protocol.BucketElections: "which coordinator leads: a lease",
	"KV_" + protocol.BucketSecrets:   "secrets of tenants, sealed to the fleet's key",
	"KV_" + protocol.BucketHistories: "which segments have the older parts of histories",

	"OBJ_" + protocol.BucketBlobs:      "uploaded trees, until sandboxes have them",
	"OBJ_" + protocol.BucketSegments:   "older parts of histories, compressed",
	"OBJ_" + protocol.BucketImageFiles: "files of imported images",
}

// descriptionOf returns the description that a stream should have. The parameter now is the stream's present
// description.
func descriptionOf(name, now string) string {
	if text := descriptions[name]; text != "" && (now == "" || strings.HasPrefix(now, described)) {
		return described + text
	}
	return now
}
