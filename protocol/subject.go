package protocol

import "strings"

// Names of the streams and buckets.
const (
	StreamRequests = "BOXFLEET_REQUESTS"
	StreamEvents   = "BOXFLEET_EVENTS"
	StreamLogs     = "BOXFLEET_LOGS"
	StreamDead     = "BOXFLEET_DEAD"
	StreamWriters  = "BOXFLEET_WRITERS" // owners of the writers' keys

	BucketIDs       = "boxfleet_ids"
	BucketNames     = "boxfleet_names" // the sandbox that has each name
	BucketExecIDs   = "boxfleet_exec_ids"
	BucketSandboxes = "boxfleet_sandboxes"
	BucketWorkers   = "boxfleet_workers"
	BucketLocks     = "boxfleet_locks"
	BucketElections = "boxfleet_elections"
	BucketBlobs     = "boxfleet_blobs"

	BucketImages = "boxfleet_images" // wanted images, and the images of each host
	BucketHosts  = "boxfleet_hosts"  // operator intents for hosts

	BucketImageFiles = "boxfleet_image_files" // files of wanted images

	BucketSecrets = "boxfleet_secrets" // sealed values of secrets

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
	HeaderWriter      = "Boxfleet-Writer"   // coordinator or worker that wrote the message
	HeaderToken       = "Boxfleet-Token"    // fencing token of the writer's host lock
	HeaderSignature   = "Boxfleet-Signature"
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
	VerbSignal = "signal"
	VerbStop   = "stop"
	VerbResume = "resume"
	VerbDelete = "delete"
	VerbExtend = "extend"
)

// Verbs are the verbs of all requests.
var Verbs = []string{VerbCreate, VerbExec, VerbCancel, VerbSignal, VerbStop, VerbResume, VerbDelete, VerbExtend}

// EndsWork reports whether requests with a verb end something. Such requests make room.
func EndsWork(verb string) bool {
	return verb == VerbCancel || verb == VerbStop || verb == VerbDelete
}

// Arguments of the subject functions must have passed [ValidateID].

// RequestSubject returns the subject to which a client publishes a request.
func RequestSubject(tenant, verb, sandbox string) string {
	return root + "request." + tenant + "." + verb + "." + sandbox
}

// UserRequestSubject returns the subject to which a user publishes a request. The server's permissions let each user
// publish under its own name only, so the name is proven. Arguments may be "*".
func UserRequestSubject(tenant, user, verb, sandbox string) string {
	return root + "request." + tenant + "." + user + "." + verb + "." + sandbox
}

// Inbox returns the prefix of the subjects on which a user receives answers. A user whose name begins with @ belongs to
// no tenant.
func Inbox(tenant, user string) string {
	if strings.HasPrefix(user, "@") {
		return "_INBOX." + user
	}
	return "_INBOX." + tenant + "." + user
}

// maxInbox is the length of the longest inbox that a coordinator answers to. A server closes the connection of a client
// that publishes to a subject of more than about 4,000 bytes.
const maxInbox = 512

// MayAnswer reports whether a coordinator may send an answer for a user to an inbox that a request names. The server
// checks who subscribes to a subject, but not which reply subject a request names. If a coordinator answered to any
// subject, a user could publish with the coordinator's permissions. If user is empty, any inbox may be answered.
func MayAnswer(inbox, tenant, user string) bool {
	prefix := "_INBOX."
	if user != "" {
		prefix = Inbox(tenant, user) + "."
	}
	return len(inbox) <= maxInbox && strings.HasPrefix(inbox, prefix) &&
		!strings.Contains(inbox, "..") && !strings.HasSuffix(inbox, ".") &&
		!strings.ContainsFunc(inbox, func(r rune) bool { return r <= ' ' || r == '*' || r == '>' || r > '~' })
}

// MayReply is [MayAnswer] for the reply subject of a message. It also accepts subjects below _R_, with which a server
// replaces the reply subjects of other accounts.
func MayReply(reply, tenant, user string) bool {
	return strings.HasPrefix(reply, "_R_.") || MayAnswer(reply, tenant, user)
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

// OutputSubject returns the subject to which a worker publishes output, and under which the output is stored. host is
// the id of the worker's host, which the server's permissions prove. log is the id of an exec, a [ServiceLog] or
// [PrimaryLog]. Arguments may be "*".
func OutputSubject(host, tenant, sandbox, log string) string {
	return root + "out." + host + "." + tenant + "." + sandbox + "." + log
}

// LogSubject returns the subject under which workers of earlier versions publish and store output. The subject does not
// say which worker published. Arguments may be "*".
func LogSubject(tenant, sandbox, log string) string {
	return root + "log." + tenant + "." + sandbox + "." + log
}

// ServiceLog returns the text that takes the place of the exec id in [OutputSubject] for a service's own output.
func ServiceLog(service string) string { return "@" + service }

// ServiceOfLog returns the service whose [ServiceLog] this is. ok is false for any other output.
func ServiceOfLog(log string) (service string, ok bool) {
	service, ok = strings.CutPrefix(log, ServiceLog(""))
	return service, ok && service != ""
}

// PrimaryLog takes the place of the exec id in [OutputSubject] for the output of a sandbox's own command. It is
// neither a valid exec id nor a possible [ServiceLog].
const PrimaryLog = "@"

// BlobSubject returns the subject of one message of an upload. upload is the digest of the content in the first
// message, and the id of the upload afterwards. user is [NoUser] for a client without a user. Arguments may be "*".
func BlobSubject(tenant, user, upload, piece string) string {
	return root + "blob." + tenant + "." + user + "." + upload + "." + piece
}

// NoUser takes the place of the user in subjects of uploads if the client has no user. It is not a valid user name.
const NoUser = "@"

// SplitBlobSubject splits a subject of an upload. ok is false for any other subject.
func SplitBlobSubject(subject string) (tenant, user, upload, piece string, ok bool) {
	return splitUsersSubject(subject, "blob.")
}

// splitUsersSubject splits a subject that has a user and three other tokens after the prefix.
func splitUsersSubject(subject, prefix string) (tenant, user, third, fourth string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+prefix)
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 4 {
		return "", "", "", "", false
	}
	if parts[1] == NoUser {
		parts[1] = ""
	}
	return parts[0], parts[1], parts[2], parts[3], true
}

// DeadSubject returns the subject under which a dead letter, a request that could not be processed, is stored.
func DeadSubject(tenant, verb, sandbox string) string {
	return root + "dead." + tenant + "." + verb + "." + sandbox
}

// HeartbeatSubject returns the subject of a worker's heartbeats. worker may be "*".
func HeartbeatSubject(worker string) string { return root + "heartbeat." + worker }

// WriterSubject returns the subject on which a coordinator or worker registers its key, once for each key. The server's
// permissions prove the name, the host and the key. host is the id of a worker's Docker host, and empty for a
// coordinator. Arguments may be "*".
func WriterSubject(role Owner, name, host, key string) string {
	if host == "" {
		host = noHost
	}
	return root + "writers." + string(role) + "." + name + "." + host + "." + key
}

// noHost takes the place of the host in the subjects of coordinators, which have no host.
const noHost = "-"

// SplitWriterSubject splits a subject of a writer. ok is false for any other subject.
func SplitWriterSubject(subject string) (w Writer, key string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"writers.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 4 {
		return Writer{}, "", false
	}
	w = Writer{Role: Owner(parts[0]), Name: parts[1], Host: parts[2]}
	if w.Host == noHost {
		w.Host = ""
	}
	return w, parts[3], true
}

// WritersSince is the subject of the message that says since when a deployment requires signatures.
const WritersSince = root + "writers.since"

// StatusSubject is the subject on which coordinators publish a [Status].
const StatusSubject = root + "status"

// LeaderSubject is the subject on which the leading coordinator answers a [LeaderQuery] of another coordinator.
const LeaderSubject = root + "leader"

// APISubject returns the subject of an endpoint of the read service. tenant may be "*".
func APISubject(tenant, endpoint string) string { return root + "api." + tenant + "." + endpoint }

// UserAPISubject returns the subject of an endpoint for a user, whose name the server's permissions prove. tenant and
// user may be "*".
func UserAPISubject(tenant, user, endpoint string) string {
	return root + "api." + tenant + "." + user + "." + endpoint
}

// SplitAPISubject splits a subject of the read service. user is empty if the subject names no user. ok is false for any
// other subject.
func SplitAPISubject(subject string) (tenant, user, endpoint string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"api.")
	parts := strings.Split(rest, ".")
	switch {
	case found && len(parts) == 2:
		return parts[0], "", parts[1], true
	case found && len(parts) == 3:
		return parts[0], parts[1], parts[2], true
	}
	return "", "", "", false
}

// Stream subject filters.
const (
	RequestFilter     = root + "request.*.*.*" // without a user
	UserRequestFilter = root + "request.*.*.*.*"
	AppendFilter      = root + "append.*.*.*"
	EventFilter       = root + "event.*.*"
	EventAll          = root + "event.>"
	LiveAll           = root + "live.>"
	OutputFilter      = root + "out.*.*.*.*"
	LogFilter         = root + "log.*.*.*" // output of earlier versions
	OutputAll         = root + ">"         // all subjects in the stream of output
	BlobFilter        = root + "blob.*.*.*.*"
	WritersFilter     = root + "writers.>"
	DeadFilter        = root + "dead.*.*.*"
)

// AppendTransform maps subjects of [AppendFilter] to the subjects under which events are stored.
const AppendTransform = root + "event.{{wildcard(2)}}.{{wildcard(3)}}"

// SplitRequestSubject splits a request subject. user is empty if the subject names no user. ok is false for any other
// subject.
func SplitRequestSubject(subject string) (tenant, user, verb, sandbox string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"request.")
	parts := strings.Split(rest, ".")
	switch {
	case found && len(parts) == 3:
		return parts[0], "", parts[1], parts[2], true
	case found && len(parts) == 4:
		return parts[0], parts[1], parts[2], parts[3], true
	}
	return "", "", "", "", false
}

// SplitOutputSubject splits an [OutputSubject] or a [LogSubject]. A LogSubject has no host. ok is false for any other
// subject.
func SplitOutputSubject(subject string) (host, tenant, sandbox, log string, ok bool) {
	if rest, found := strings.CutPrefix(subject, root+"out."); found {
		host, subject, found = strings.Cut(rest, ".")
		if !found {
			return "", "", "", "", false
		}
	} else if subject, found = strings.CutPrefix(subject, root+"log."); !found {
		return "", "", "", "", false
	}
	parts := strings.Split(subject, ".")
	if len(parts) != 3 {
		return "", "", "", "", false
	}
	return host, parts[0], parts[1], parts[2], true
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

// UnsealSubject returns the subject on which a worker asks for the value of a secret. The server's permissions prove
// all three arguments. Arguments may be "*".
func UnsealSubject(worker, host, key string) string {
	return root + "unseal." + worker + "." + host + "." + key
}

// SplitUnsealSubject splits an [UnsealSubject]. ok is false for any other subject.
func SplitUnsealSubject(subject string) (worker, host, key string, ok bool) {
	rest, found := strings.CutPrefix(subject, root+"unseal.")
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// SecretSubject returns the subject on which a client sends a [SecretRequest]. The server's permissions prove the
// tenant and the user. user is [NoUser] for a client without a user. Arguments may be "*".
func SecretSubject(tenant, user, name, verb string) string {
	return root + "secret." + tenant + "." + user + "." + name + "." + verb
}

// SplitSecretSubject splits a [SecretSubject]. user is empty for a client without a user. ok is false for any other
// subject.
func SplitSecretSubject(subject string) (tenant, user, name, verb string, ok bool) {
	return splitUsersSubject(subject, "secret.")
}

// MeasureSubject returns the subject on which a coordinator asks a worker what a sandbox uses. Arguments may be "*".
func MeasureSubject(worker, host string) string { return root + "measure." + worker + "." + host }

// MeasuredSubject returns the subject on which a worker answers the question of a coordinator. The server's permissions
// prove the worker and its host. id is that of the question. Arguments may be "*".
func MeasuredSubject(coordinator, worker, host, id string) string {
	return root + "measured." + coordinator + "." + worker + "." + host + "." + id
}
