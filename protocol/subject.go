package protocol

import "strings"

// Names of the streams and buckets.
const (
	StreamRequests = "BOXFLEET_REQUESTS"
	StreamEvents   = "BOXFLEET_EVENTS"
	StreamLogs     = "BOXFLEET_LOGS"
	StreamDead     = "BOXFLEET_DEAD"

	BucketIDs       = "boxfleet_ids"
	BucketNames     = "boxfleet_names" // which sandbox has a name
	BucketExecIDs   = "boxfleet_exec_ids"
	BucketSandboxes = "boxfleet_sandboxes"
	BucketWorkers   = "boxfleet_workers"
	BucketLocks     = "boxfleet_locks"
	BucketElections = "boxfleet_elections"
	BucketBlobs     = "boxfleet_blobs"

	BucketImages = "boxfleet_images" // wanted images, and what hosts have
	BucketHosts  = "boxfleet_hosts"  // what operators want of hosts

	BucketImageFiles = "boxfleet_image_files" // that wanted images come from

	BucketHistories = "boxfleet_histories" // which segments hold the older parts of histories
	BucketSegments  = "boxfleet_segments"  // those parts

	ServiceName = "boxfleet"
)

const root = "boxfleet.v1."

// Headers that a person can read beside the payload.
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
	HeaderReason      = "Boxfleet-Reason" // why a request is dead
	HeaderAccept      = "Boxfleet-Accept" // of a request: [AcceptWaiting], where its client understands such answers
)

// AcceptWaiting is the [HeaderAccept] of a client that tells [Reply.Waiting] from an outcome.
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

// Subjects. Every argument must have passed [ValidateID].

// RequestSubject is where a client publishes a request.
func RequestSubject(tenant, verb, sandbox string) string {
	return root + "request." + tenant + "." + verb + "." + sandbox
}

// EventSubject is where the history of one sandbox is stored.
func EventSubject(tenant, sandbox string) string { return root + "event." + tenant + "." + sandbox }

// AppendSubject is where a writer publishes events; the stream stores them under [EventSubject].
func AppendSubject(writer, tenant, sandbox string) string {
	return root + "append." + writer + "." + tenant + "." + sandbox
}

// LiveSubject is where the server republishes each stored event message. tenant and sandbox may
// be "*".
func LiveSubject(tenant, sandbox string) string { return root + "live." + tenant + "." + sandbox }

// WorkSubject is where a worker is told to look at a sandbox.
func WorkSubject(worker, tenant, sandbox string) string {
	return root + "work." + worker + "." + tenant + "." + sandbox
}

// LogSubject is where the output of one exec is stored and, at the same time, heard live.
func LogSubject(tenant, sandbox, exec string) string {
	return root + "log." + tenant + "." + sandbox + "." + exec
}

// ServiceLog stands for a service's own output where an exec's id stands for the exec's.
func ServiceLog(service string) string { return "@" + service }

// PrimaryLog stands for the output of a sandbox's own command where an exec's id stands for the exec's.
// No exec has it as its id, and no service is named so that [ServiceLog] gives it.
const PrimaryLog = "@"

// DeadSubject is where a request is filed that could not be processed.
func DeadSubject(tenant, verb, sandbox string) string {
	return root + "dead." + tenant + "." + verb + "." + sandbox
}

// HeartbeatSubject is where a worker says that it is alive. worker may be "*".
func HeartbeatSubject(worker string) string { return root + "heartbeat." + worker }

// StatusSubject is where coordinators say what keeps them from deciding, as [Status].
const StatusSubject = root + "status"

// APISubject is an endpoint of the read service; tenant may be "*".
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

// AppendTransform maps what is published under [AppendFilter] to the stored subject.
const AppendTransform = root + "event.{{wildcard(2)}}.{{wildcard(3)}}"

// SplitRequestSubject takes a request subject apart. ok is false for any other subject.
func SplitRequestSubject(subject string) (tenant, verb, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"request.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// SplitLogSubject takes a subject of output apart, as far as whose it is. ok is false for any other subject.
func SplitLogSubject(subject string) (tenant, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"log.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// SplitEventSubject takes a stored event subject, or a live one, apart.
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
