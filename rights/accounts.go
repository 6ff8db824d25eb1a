package rights

import "github.com/boxfleet/boxfleet/protocol"

// Account is one of the accounts of a deployment. A server publishes its answers to any reply subject that a message
// names, and does not check whether the sender may publish there. So everybody in the account with the streams can have
// answers stored in any stream. Therefore only the roles that are trusted with every stream are in that account. All
// other roles are in accounts without streams, which share only the subjects of [Account.Shared] with the account of
// the streams. If the sender is in such an account, the answer stays in that account and reaches no stream.
type Account string

// The accounts. Their texts are part of the names that servers and tools show.
const (
	Streams Account = ""        // coordinators and operators
	Workers Account = "workers" // workers
	Clients Account = "clients" // everybody who only sends requests and reads
)

// Accounts returns all accounts, that of the streams first.
func Accounts() []Account { return []Account{Streams, Workers, Clients} }

// Account returns the account that the role belongs to.
func (r Role) Account() Account {
	switch r {
	case Worker:
		return Workers
	case User, Viewer, FleetViewer:
		return Clients
	}
	return Streams
}

// Share is how one subject passes between the account of the streams and another account. A server does not pass on a
// message that came from another account. So if all accounts may subscribe to a subject, each of them receives it
// directly from the publisher's account.
type Share struct {
	Subject string
	Way     Way
}

// Way is the direction of a [Share], and how many answers a message may have.
type Way string

// The ways of a [Share] between the account of the streams and another account.
const (
	Asked    Way = "asked" // the other account publishes; there is at most one answer to each message
	AskedFor Way = "batch" // the other account publishes; there may be many answers to each message
	Heard    Way = "heard" // the other account subscribes
	Told     Way = "told"  // the other account publishes, all accounts may subscribe, and nobody answers

	// Shown means that every other account without streams may subscribe to the messages that this share's account
	// publishes. The subject may also be Asked.
	Shown Way = "shown"

	Answers Way = "answers" // all other accounts publish; this share's account answers each message at most once
)

// IsOwn reports whether the share's account exports the subject. Otherwise the account of the streams exports it, and
// the share's account imports it.
func (s Share) IsOwn() bool { return s.Way == Told || s.Way == Shown || s.Way == Answers }

// Imports reports whether one account imports a subject that another account exports, see [Share.IsOwn].
func (s Share) Imports(importer, exporter Account) bool {
	return importer != exporter && s.IsOwn() && (s.Way != Shown || importer != Streams)
}

// streamsUp are the subjects of the frames that clients send to workers.
var streamsUp = protocol.StreamUpSubject("*", "*", "*", "*", "*")

// Shared returns the subjects that pass between the account and the account of the streams. There are none for the
// account of the streams itself.
func (a Account) Shared() (shared []Share) {
	add := func(way Way, subjects ...string) {
		for _, s := range subjects {
			shared = append(shared, Share{s, way})
		}
	}
	switch a {
	case Clients:
		add(Asked, root+"api.>", root+"blob.>", root+"request.>", root+"secret.>")
		// The account subscribes to the answers to requests, because an answer comes long after the acknowledgement of
		// the request.
		add(Heard, "_INBOX.>", root+"live.>", protocol.StatusSubject)
		add(Shown, streamsUp)
	case Workers:
		add(Asked, root+"append.>", root+"out.>", root+"writers.worker.>", root+"api.>", root+"unseal.>",
			root+"measured.>",
			"$KV."+protocol.BucketLocks+".host.*", "$KV."+protocol.BucketWorkers+".*",
			"$KV."+protocol.BucketImages+".host.*", "$JS.API.INFO")
		add(Asked, api("STREAM.INFO", workerInfos...)...)
		add(Asked, api("STREAM.MSG.GET", workerReads...)...)
		add(AskedFor, api("DIRECT.GET", workerBatches...)...)
		add(Told, protocol.HeartbeatSubject("*"))
		add(Shown, root+"out.>")
		add(Answers, protocol.StreamOpenSubject("*", "*", "*", "*"))
		add(Told, protocol.StreamDownSubject("*", "*", "*", "*", "*"))
		add(Heard, streamsUp)
		add(Heard, root+"work.>", root+"measure.>", "$KV."+protocol.BucketImages+".want.*")
		add(Heard, leaders...)
	}
	return shared
}
