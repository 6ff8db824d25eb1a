package protocol

import "strings"

// Names of the streams and buckets.
const (
	StreamRequests = "BOXFLEET_REQUESTS"
	StreamEvents   = "BOXFLEET_EVENTS"
	StreamLogs     = "BOXFLEET_LOGS"
	StreamDead     = "BOXFLEET_DEAD"

	BucketIDs       = "boxfleet_ids"
	BucketNames     = "boxfleet_names" // which sandbox has which name
	BucketExecIDs   = "boxfleet_exec_ids"
	BucketSandboxes = "boxfleet_sandboxes"
	BucketWorkers   = "boxfleet_workers"
	BucketLocks     = "boxfleet_locks"
	BucketElections = "boxfleet_elections"
	BucketBlobs     = "boxfleet_blobs"

	BucketImages = "boxfleet_images" // wanted images, and the images of each host
	BucketHosts  = "boxfleet_hosts"  // operator intents for hosts

	BucketImageFiles = "boxfleet_image_files" // files of wanted images

	BucketHistories = "boxfleet_histories" // manifests: which segments hold the older parts of histories
	BucketSegments  = "boxfleet_segments"  // segments

	ServiceName = "boxfleet"
)

const root = "boxfleet.v1."

// Message headers.
const (
	HeaderContentType = "Content-Type"
	HeaderReply       = "Boxfleet-Reply"    // inbox for the answer to a request
	HeaderRequest     = "Boxfleet-Request"  // request id
	HeaderKind        = "Boxfleet-Kind"     // kinds of the events in the message, comma separated
	HeaderSequence    = "Boxfleet-Sequence" // first and last event sequence, "7" or "7-9"
	HeaderState       = "Boxfleet-State"    // sandbox state after the message
	HeaderWriter      = "Boxfleet-Writer"   // coordinator or worker that wrote it
	HeaderToken       = "Boxfleet-Token"    // fencing token of the writer's host lock
	HeaderExec        = "Boxfleet-Exec"
	HeaderStream      = "Boxfleet-Stream" // stdout or stderr
	HeaderOffset      = "Boxfleet-Offset" // byte offset of the chunk's first byte in its stream
	HeaderNextOut     = "Boxfleet-Next-Stdout"
	HeaderNextErr     = "Boxfleet-Next-Stderr"
	HeaderReason      = "Boxfleet-Reason" // why a request is a dead letter
	HeaderAccept      = "Boxfleet-Accept" // [AcceptWaiting] if the client understands [Reply.Waiting]
)

// AcceptWaiting is the [HeaderAccept] of a client that distinguishes [Reply.Waiting] from an outcome.
const AcceptWaiting = "waiting"

// Verbs of requests.
const (
	VerbCreate = "create"
	VerbExec   = "exec"
	VerbCancel = "cancel"
	VerbStop   = "stop"
	VerbResume = "resume"
	VerbDelete = "delete"
	VerbExtend = "extend"
)

// Arguments of the subject functions must have passed [ValidateID].

// RequestSubject returns the subject to which a client publishes a request.
func RequestSubject(tenant, verb, sandbox string) string {
	return root + "request." + tenant + "." + verb + "." + sandbox
}

// EventSubject returns the subject under which a sandbox's history is stored.
func EventSubject(tenant, sandbox string) string { return root + "event." + tenant + "." + sandbox }

// AppendSubject returns the subject to which a writer publishes events. The stream stores them under
// [EventSubject].
func AppendSubject(writer, tenant, sandbox string) string {
	return root + "append." + writer + "." + tenant + "." + sandbox
}

// LiveSubject returns the subject on which the server republishes stored events. tenant and sandbox may be "*".
func LiveSubject(tenant, sandbox string) string { return root + "live." + tenant + "." + sandbox }

// WorkSubject returns the subject that notifies a worker that a sandbox has news.
func WorkSubject(worker, tenant, sandbox string) string {
	return root + "work." + worker + "." + tenant + "." + sandbox
}

// LogSubject returns the subject on which the output of an exec is published and stored.
func LogSubject(tenant, sandbox, exec string) string {
	return root + "log." + tenant + "." + sandbox + "." + exec
}

// ServiceLog returns the text that takes the place of the exec id in [LogSubject] for a service's own output.
func ServiceLog(service string) string { return "@" + service }

// PrimaryLog takes the place of the exec id in [LogSubject] for the output of a sandbox's own command. It is
// neither a valid exec id nor a possible [ServiceLog].
const PrimaryLog = "@"

// DeadSubject returns the subject under which a dead letter, a request that could not be processed, is stored.
func DeadSubject(tenant, verb, sandbox string) string {
	return root + "dead." + tenant + "." + verb + "." + sandbox
}

// HeartbeatSubject returns the subject of a worker's heartbeats. worker may be "*".
func HeartbeatSubject(worker string) string { return root + "heartbeat." + worker }

// StatusSubject is the subject on which coordinators publish a [Status].
const StatusSubject = root + "status"

// APISubject returns the subject of an endpoint of the read service. tenant may be "*".
func APISubject(tenant, endpoint string) string { return root + "api." + tenant + "." + endpoint }

// Stream subject filters.
const (
	RequestFilter = root + "request.*.*.*"
	AppendFilter  = root + "append.*.*.*"
	EventFilter   = root + "event.*.*"
	EventAll      = root + "event.>"
	LiveAll       = root + "live.>"
	LogFilter     = root + "log.*.*.*"
	DeadFilter    = root + "dead.*.*.*"
)

// AppendTransform maps subjects of [AppendFilter] to the subjects under which events are stored.
const AppendTransform = root + "event.{{wildcard(2)}}.{{wildcard(3)}}"

// SplitRequestSubject splits a request subject. ok is false for any other subject.
func SplitRequestSubject(subject string) (tenant, verb, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"request.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// SplitLogSubject returns the tenant and sandbox of an output subject. ok is false for any other subject.
func SplitLogSubject(subject string) (tenant, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"log.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// SplitEventSubject splits an event subject or a live subject. ok is false for any other subject.
func SplitEventSubject(subject string) (tenant, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"event.")
	if !found {
		rest, found = strings.CutPrefix(subject, root+"live.")
	}
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 2 {
		return "", "", false
	}
	return parts[0], parts[1], true
}
