package rights

import (
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

const root = "boxfleet.v1."

// inboxOf returns the inboxes of a role. A tenant's name cannot begin with @, so the inboxes of a tenant never equal
// those of a role without a tenant. No two holders of roles without a tenant have the same name.
func inboxOf(role Role) string {
	if role.HasTenant() {
		return "_INBOX.{tenant}.{name}.>"
	}
	return "_INBOX.@{name}.>"
}

// The streams in which JetStream keeps a bucket or an object store have these names.
func kv(bucket string) string      { return "KV_" + bucket }
func objects(bucket string) string { return "OBJ_" + bucket }

// allStreams are the streams and buckets of a deployment.
var allStreams = []string{
	protocol.StreamRequests, protocol.StreamEvents, protocol.StreamLogs, protocol.StreamDead, protocol.StreamWriters,
	kv(protocol.BucketIDs), kv(protocol.BucketNames), kv(protocol.BucketExecIDs), kv(protocol.BucketSandboxes),
	kv(protocol.BucketImages), kv(protocol.BucketHosts), kv(protocol.BucketWorkers), kv(protocol.BucketLocks),
	kv(protocol.BucketElections), objects(protocol.BucketBlobs), kv(protocol.BucketHistories),
	kv(protocol.BucketSecrets),
	objects(protocol.BucketSegments), objects(protocol.BucketImageFiles),
}

// streamMoving holds the stored output while its stream gets more replicas.
const streamMoving = protocol.StreamLogs + "_MOVING"

// directStreams are the streams whose messages are read in batches, from any replica.
var directStreams = []string{
	protocol.StreamEvents, protocol.StreamLogs,
	objects(protocol.BucketBlobs), objects(protocol.BucketSegments), objects(protocol.BucketImageFiles),
}

// leaders are the subjects on which the server announces a new leader of the event log or of the log of output. The old
// leader may have stored messages without publishing them.
var leaders = []string{
	"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + protocol.StreamEvents,
	"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + protocol.StreamLogs,
}

// api returns the subject of one verb of the JetStream API for each stream.
func api(verb string, streams ...string) (subjects []string) {
	for _, s := range streams {
		subjects = append(subjects, "$JS.API."+verb+"."+s)
	}
	return subjects
}

// follow returns the subjects needed to read part of a stream through a consumer. The name of the consumer is chosen at
// random.
func follow(stream string, filters ...string) (subjects []string) {
	for _, f := range filters {
		subjects = append(subjects, "$JS.API.CONSUMER.CREATE."+stream+".*."+f)
	}
	return append(subjects, "$JS.API.CONSUMER.MSG.NEXT."+stream+".*")
}

// keys returns the subjects of keys of a bucket.
func keys(bucket string, patterns ...string) (subjects []string) {
	for _, p := range patterns {
		subjects = append(subjects, "$KV."+bucket+"."+p)
	}
	return subjects
}

// content returns the subjects of the chunks and entries of an object store.
func content(bucket string) []string {
	return []string{"$O." + bucket + ".C.*", "$O." + bucket + ".M.*"}
}

// Table returns the rights of all roles, in the order of the documentation.
func Table() []Row {
	return slices.Concat(coordinatorRows(), workerRows(), tenantRows(User), userRows(), tenantRows(Viewer),
		fleetViewerRows(), operatorRows())
}

func rowsOf(role Role, rows ...Row) []Row {
	for i := range rows {
		rows[i].Role = role
	}
	return append(rows, Row{role, Subscribe, []string{inboxOf(role)}, "answers to its own questions"})
}

func coordinatorRows() []Row {
	return rowsOf(Coordinator, slices.Concat(coordinatorMessages(), coordinatorStreams(), coordinatorBuckets())...)
}

// coordinatorMessages are a coordinator's rights outside of JetStream.
func coordinatorMessages() []Row {
	return []Row{
		{Verb: Publish, Subjects: []string{root + "append.{name}.*.*"}, Why: "append events, under its own name only"},
		{Verb: Publish, Subjects: []string{protocol.WriterSubject(protocol.OwnerCoordinator, "{name}", "", "{key}")},
			Why: "register the key with which it signs events"},
		{Verb: Publish, Subjects: []string{protocol.WritersSince}, Why: "publish the last record that may be unsigned"},
		{Verb: Publish, Subjects: []string{root + "work.*.*.*"}, Why: "notify workers of news"},
		{Verb: Publish, Subjects: []string{protocol.MeasureSubject("*", "*")}, Why: "ask workers what a sandbox uses"},
		{Verb: Publish, Subjects: []string{protocol.StatusSubject}, Why: "publish why it decides no requests"},
		{Verb: Publish, Subjects: []string{protocol.LeaderSubject}, Why: "ask the leading coordinator about quotas"},
		{Verb: Publish, Subjects: []string{protocol.DeadFilter}, Why: "store requests that cannot be processed"},
		{Verb: Publish, Subjects: []string{"_INBOX.>"}, Why: "answer requests, and the reads of operators"},
		{Verb: Publish, Subjects: []string{"_R_.>"}, Why: "answer reads and uploads from other accounts"},
		{Verb: Subscribe, Subjects: []string{root + "api.*.*", root + "api.*.*.*"},
			Why: "answer reads, on subjects with and without the name of the reader"},
		{Verb: Subscribe, Subjects: []string{root + "blob.*.*.*.*"}, Why: "take the chunks of uploads"},
		{Verb: Subscribe, Subjects: []string{protocol.SecretSubject("*", "*", "*", "*")},
			Why: "take requests to set and remove secrets"},
		{Verb: Subscribe, Subjects: []string{protocol.UnsealSubject("*", "*", "*")},
			Why: "seal the values of secrets to the workers that run their sandboxes"},
		{Verb: Subscribe, Subjects: []string{protocol.LeaderSubject},
			Why: "answer other coordinators about quotas while it leads"},
		{Verb: Subscribe, Subjects: []string{protocol.MeasuredSubject("{name}", "*", "*", "*")},
			Why: "receive the workers' answers to its own questions about sandboxes"},
		{Verb: Subscribe, Subjects: []string{protocol.HeartbeatSubject("*")}, Why: "hear which hosts are alive"},
		{Verb: Subscribe, Subjects: []string{
			"$SRV.PING", "$SRV.PING.boxfleet", "$SRV.PING.boxfleet.*",
			"$SRV.INFO", "$SRV.INFO.boxfleet", "$SRV.INFO.boxfleet.*",
			"$SRV.STATS", "$SRV.STATS.boxfleet", "$SRV.STATS.boxfleet.*",
		}, Why: "answer `nats service` about the read service"},
		{Verb: Subscribe, Subjects: leaders,
			Why: "learn of a new leader: the old one may not have published its last messages"},
	}
}

// coordinatorStreams are a coordinator's rights on the API of JetStream.
func coordinatorStreams() []Row {
	const requests = protocol.StreamRequests + ".coordinators"
	return []Row{
		{Verb: Publish, Subjects: []string{"$JS.API.INFO"}, Why: "check that JetStream is available and has room"},
		{Verb: Publish, Subjects: api("STREAM.INFO", append(slices.Clone(allStreams), streamMoving)...),
			Why: "read the settings, the size and the clock of streams"},
		{Verb: Publish, Subjects: api("STREAM.CREATE", allStreams...), Why: "make missing streams at its start"},
		{Verb: Publish, Subjects: api("STREAM.UPDATE", allStreams...), Why: "raise limits of streams at its start"},
		{Verb: Publish, Subjects: api("STREAM.MSG.GET", allStreams...), Why: "read single messages from the leader"},
		{Verb: Publish,
			Subjects: api("DIRECT.GET", protocol.StreamEvents, protocol.StreamLogs, objects(protocol.BucketSegments),
				objects(protocol.BucketBlobs)),
			Why: "read histories and output, and find interrupted uploads"},
		{Verb: Publish, Subjects: follow(protocol.StreamEvents, protocol.EventFilter), Why: "follow the event log"},
		{Verb: Publish, Subjects: follow(protocol.StreamLogs, protocol.OutputAll), Why: "measure the stored output"},
		{Verb: Publish, Subjects: []string{"$JS.API.CONSUMER.CREATE." + requests, "$JS.API.CONSUMER.MSG.NEXT." + requests,
			"$JS.ACK." + requests + ".>", "$JS.API.CONSUMER.INFO." + requests}, Why: "take requests and settle them"},
		{Verb: Publish, Subjects: api("STREAM.MSG.DELETE", protocol.StreamRequests),
			Why: "remove a request that was decided while others wait"},
		{Verb: Publish, Subjects: api("STREAM.PURGE",
			protocol.StreamRequests, protocol.StreamEvents, protocol.StreamLogs, kv(protocol.BucketNames),
			kv(protocol.BucketExecIDs), kv(protocol.BucketSandboxes), kv(protocol.BucketHistories), kv(protocol.BucketSecrets),
			objects(protocol.BucketSegments), objects(protocol.BucketBlobs), objects(protocol.BucketImageFiles)),
			Why: "remove settled requests, compacted and deleted histories, removed secrets, and replaced objects"},
		{Verb: Publish, Subjects: api("STREAM.LEADER.STEPDOWN", protocol.StreamEvents),
			Why: "recover an event log whose leader refuses writes"},
	}
}

// coordinatorBuckets are a coordinator's rights on keys and objects.
func coordinatorBuckets() []Row {
	return []Row{
		{Verb: Publish, Subjects: slices.Concat(keys(protocol.BucketIDs, "*.*"), keys(protocol.BucketNames, "*.*")),
			Why: "reserve ids and names"},
		{Verb: Publish, Subjects: keys(protocol.BucketExecIDs, "*.*.>"), Why: "index execs"},
		{Verb: Publish, Subjects: keys(protocol.BucketSandboxes, "*.*", "*.*.over", "_checkpoint"),
			Why: "store snapshots and the checkpoint"},
		{Verb: Publish, Subjects: keys(protocol.BucketHistories, "*.*", "*.*.*"), Why: "list the segments of histories"},
		{Verb: Publish, Subjects: keys(protocol.BucketSecrets, "*.*"), Why: "store secrets"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketSecrets), keys(protocol.BucketSecrets, "*.*")...),
			Why: "follow the names and versions of secrets"},
		{Verb: Publish, Subjects: content(protocol.BucketSegments), Why: "store segments"},
		{Verb: Publish, Subjects: content(protocol.BucketBlobs), Why: "store uploads, and renew those in use"},
		{Verb: Publish, Subjects: follow(objects(protocol.BucketBlobs), "$O."+protocol.BucketBlobs+".M.>"),
			Why: "count the uploads of each tenant"},
		{Verb: Publish, Subjects: []string{"$O." + protocol.BucketImageFiles + ".M.*"},
			Why: "remove files that no wanted image names"},
		{Verb: Publish, Subjects: keys(protocol.BucketLocks, "host.*"), Why: "take the lock of a lost host"},
		{Verb: Publish, Subjects: keys(protocol.BucketElections, "scheduler"), Why: "compete for the scheduler's lock"},
		{Verb: Publish, Subjects: keys(protocol.BucketHosts, "*"), Why: "finish operator intents"},
		{Verb: Publish, Subjects: keys(protocol.BucketImages, "host.*"), Why: "forget the images of a host that is gone"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketIDs), keys(protocol.BucketIDs, ">")...),
			Why: "follow the reserved ids"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketExecIDs), keys(protocol.BucketExecIDs, "*.*.head")...),
			Why: "follow the index of execs"},
		{Verb: Publish,
			Subjects: follow(kv(protocol.BucketSandboxes), keys(protocol.BucketSandboxes, "*.*", "*.*.over")...),
			Why:      "read all snapshots at its start"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketWorkers), keys(protocol.BucketWorkers, ">")...),
			Why: "follow the table of hosts"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketHosts), keys(protocol.BucketHosts, ">")...),
			Why: "follow operator intents"},
		{Verb: Publish, Subjects: follow(kv(protocol.BucketImages), keys(protocol.BucketImages, ">")...),
			Why: "follow the wanted images and the images of hosts"},
		{Verb: Publish, Subjects: []string{
			"$JS.API.CONSUMER.CREATE." + objects(protocol.BucketImageFiles) + ".*.$O." + protocol.BucketImageFiles + ".M.>",
			"$JS.API.CONSUMER.DELETE." + objects(protocol.BucketImageFiles) + ".*",
			"$JS.API.DIRECT.GET." + objects(protocol.BucketImageFiles) + ".$O." + protocol.BucketImageFiles + ".M.>",
		}, Why: "list the files of images"},
	}
}

// What a worker reads: the state of streams, single messages, and batches of messages.
var (
	workerInfos = []string{protocol.StreamEvents, kv(protocol.BucketLocks)}
	workerReads = []string{
		protocol.StreamEvents, protocol.StreamLogs, protocol.StreamWriters,
		kv(protocol.BucketLocks), kv(protocol.BucketWorkers),
		kv(protocol.BucketSandboxes), kv(protocol.BucketHistories), kv(protocol.BucketImages),
		objects(protocol.BucketSegments), objects(protocol.BucketImageFiles), objects(protocol.BucketBlobs),
	}
	workerBatches = []string{
		protocol.StreamEvents,
		objects(protocol.BucketSegments), objects(protocol.BucketImageFiles), objects(protocol.BucketBlobs),
	}
)

func workerRows() []Row {
	return rowsOf(Worker,
		Row{Verb: Publish, Subjects: []string{root + "append.{name}.*.*"}, Why: "append events, under its own name only"},
		Row{Verb: Publish, Subjects: []string{protocol.OutputSubject("{host}", "*", "*", "*")},
			Why: "publish output, under its own host only"},
		Row{Verb: Publish, Subjects: []string{protocol.WriterSubject(protocol.OwnerWorker, "{name}", "{host}", "{key}")},
			Why: "register the key with which it signs events"},
		Row{Verb: Publish, Subjects: []string{protocol.UnsealSubject("{name}", "{host}", "{key}")},
			Why: "ask for the values of secrets of the sandboxes that its host runs"},
		Row{Verb: Publish, Subjects: []string{protocol.MeasuredSubject("*", "{name}", "{host}", "*")},
			Why: "answer coordinators that ask what a sandbox on its host uses"},
		Row{Verb: Publish, Subjects: []string{protocol.HeartbeatSubject("{name}")}, Why: "say that its host is alive"},
		Row{Verb: Publish, Subjects: keys(protocol.BucketLocks, "host.{host}"), Why: "hold the lock of its host"},
		Row{Verb: Publish, Subjects: keys(protocol.BucketWorkers, "{name}"), Why: "register its host"},
		Row{Verb: Publish, Subjects: keys(protocol.BucketImages, "host.{name}"), Why: "report the images of its host"},
		Row{Verb: Publish,
			Subjects: []string{root + "api." + protocol.DefaultTenant + ".@{name}." + protocol.EndpointAwaited},
			Why:      "ask which images sandboxes wait for, before it removes an image"},
		Row{Verb: Publish, Subjects: []string{"$JS.API.INFO"}, Why: "check that JetStream is available"},
		Row{Verb: Publish, Subjects: api("STREAM.INFO", workerInfos...),
			Why: "read the deployment's id, the store's clock and the lifetime of locks"},
		Row{Verb: Publish, Subjects: api("STREAM.MSG.GET", workerReads...),
			Why: "read histories, the end of stored output, locks, snapshots, wanted images and entries of objects"},
		Row{Verb: Publish, Subjects: api("DIRECT.GET", workerBatches...),
			Why: "read histories, files of images and uploads"},
		Row{Verb: Publish, Subjects: []string{protocol.StreamDownSubject("{name}", "*", "*", "*", "*")},
			Why: "send the frames of streams, under its own name only"},
		Row{Verb: Publish, Subjects: []string{"_R_.>"}, Why: "answer requests for streams, which come from other accounts"},
		Row{Verb: Subscribe, Subjects: []string{
			protocol.StreamOpenSubject("{name}", "*", "*", "*"), protocol.StreamUpSubject("{name}", "*", "*", "*", "*"),
		}, Why: "take requests for streams to its sandboxes, and the frames of these streams"},
		Row{Verb: Subscribe, Subjects: []string{root + "work.{name}.*.*"}, Why: "receive notifications for its sandboxes"},
		Row{Verb: Subscribe, Subjects: []string{protocol.MeasureSubject("{name}", "{host}")},
			Why: "be asked what sandboxes on its host use"},
		Row{Verb: Subscribe, Subjects: keys(protocol.BucketImages, "want.*"), Why: "hear when to read the wanted images"},
		Row{Verb: Subscribe, Subjects: leaders,
			Why: "learn of a new leader: the old one may not have published its last messages"},
	)
}

// tenantRows are the rights of everybody in a tenant.
func tenantRows(role Role) []Row {
	return rowsOf(role,
		Row{Verb: Publish, Subjects: []string{root + "api.{tenant}.{name}.*"}, Why: "read, in its tenant"},
		Row{Verb: Subscribe, Subjects: []string{root + "live.{tenant}.>"}, Why: "follow events of its tenant"},
		Row{Verb: Subscribe, Subjects: []string{root + "out.*.{tenant}.>"}, Why: "follow output of its tenant"},
		Row{Verb: Subscribe, Subjects: []string{protocol.StatusSubject}, Why: "learn why coordinators decide no requests"},
	)
}

// userRows are the rights that a user has and a viewer lacks.
func userRows() []Row {
	var requests []string
	for _, verb := range protocol.Verbs {
		requests = append(requests, root+"request.{tenant}.{name}."+verb+".*")
	}
	return []Row{
		{User, Publish, requests, "send requests, in its tenant"},
		{User, Publish, []string{root + "blob.{tenant}.{name}.*.*"}, "upload trees through a coordinator"},
		{User, Publish, []string{protocol.SecretSubject("{tenant}", "{name}", "*", "*")},
			"set and remove secrets of its tenant"},
		{User, Publish, []string{
			protocol.StreamOpenSubject("*", "{tenant}", "{name}", "*"),
			protocol.StreamUpSubject("*", "{tenant}", "{name}", "*", "*"),
		}, "open streams to the sandboxes of its tenant, and send their frames"},
		{User, Subscribe, []string{protocol.StreamDownSubject("*", "{tenant}", "{name}", "*", "*")},
			"receive the frames of its own streams"},
	}
}

func fleetViewerRows() []Row {
	return rowsOf(FleetViewer,
		Row{Verb: Publish, Subjects: []string{root + "api.*.@{name}.*"}, Why: "read, in every tenant"},
		Row{Verb: Subscribe, Subjects: []string{root + "live.>"}, Why: "follow events of all tenants"},
		Row{Verb: Subscribe, Subjects: []string{protocol.HeartbeatSubject("*")}, Why: "hear which hosts are alive"},
		Row{Verb: Subscribe, Subjects: []string{protocol.StatusSubject}, Why: "learn why coordinators decide no requests"},
	)
}

func operatorRows() []Row {
	return rowsOf(Operator, slices.Concat(operatorMessages(), operatorStreams())...)
}

// operatorMessages are an operator's rights to act in every tenant, and to control hosts and images.
func operatorMessages() []Row {
	return []Row{
		{Verb: Publish, Subjects: []string{root + "request.*.@{name}.*.*"}, Why: "send requests, in every tenant"},
		{Verb: Publish, Subjects: []string{root + "api.*.@{name}.*"}, Why: "read, in every tenant"},
		{Verb: Publish, Subjects: []string{root + "blob.*.@{name}.*.*"}, Why: "upload trees, in every tenant"},
		{Verb: Publish, Subjects: []string{protocol.SecretSubject("*", "@{name}", "*", "*")},
			Why: "set and remove secrets, in every tenant"},
		{Verb: Publish, Subjects: []string{
			protocol.StreamOpenSubject("*", "*", "@{name}", "*"), protocol.StreamUpSubject("*", "*", "@{name}", "*", "*"),
		}, Why: "open streams to the sandboxes of every tenant, and send their frames"},
		{Verb: Subscribe, Subjects: []string{protocol.StreamDownSubject("*", "*", "@{name}", "*", "*")},
			Why: "receive the frames of its own streams"},
		{Verb: Publish, Subjects: []string{
			"$SRV.PING.boxfleet", "$SRV.INFO.boxfleet", "$SRV.STATS.boxfleet",
		}, Why: "ask with `nats service` which coordinators serve reads"},
		{Verb: Publish, Subjects: keys(protocol.BucketHosts, "*"), Why: "cordon, drain and forget hosts"},
		{Verb: Publish, Subjects: keys(protocol.BucketImages, "want.*"), Why: "import images and remove imported ones"},
		{Verb: Publish, Subjects: content(protocol.BucketImageFiles), Why: "store the files of imported images"},
		{Verb: Subscribe, Subjects: []string{root + "live.>"}, Why: "follow events of all tenants"},
		{Verb: Subscribe, Subjects: []string{root + "out.>"}, Why: "follow output of all tenants"},
		{Verb: Subscribe, Subjects: []string{protocol.HeartbeatSubject("*")}, Why: "hear which hosts are alive"},
		{Verb: Subscribe, Subjects: []string{protocol.StatusSubject}, Why: "learn why coordinators decide no requests"},
		{Verb: Subscribe, Subjects: leaders,
			Why: "learn of a new leader: the old one may not have published its last messages"},
	}
}

// operatorStreams are an operator's rights on the API of JetStream.
func operatorStreams() []Row {
	all := append(slices.Clone(allStreams), streamMoving)
	images := kv(protocol.BucketImages)
	return []Row{
		{Verb: Publish, Subjects: []string{"$JS.API.INFO"}, Why: "check that JetStream is available and has room"},
		{Verb: Publish, Subjects: api("STREAM.INFO", all...), Why: "read the settings and the size of streams"},
		{Verb: Publish, Subjects: api("STREAM.MSG.GET", allStreams...), Why: "read single messages from the leader"},
		{Verb: Publish, Subjects: api("DIRECT.GET", directStreams...), Why: "read histories, output and objects"},
		{Verb: Publish, Subjects: follow(images, keys(protocol.BucketImages, ">")...), Why: "list wanted images"},
		{Verb: Publish, Subjects: api("STREAM.PURGE", objects(protocol.BucketImageFiles), protocol.StreamLogs),
			Why: "remove the files of images, and finish the move of the output to more replicas"},
		{Verb: Publish, Subjects: slices.Concat(api("STREAM.CREATE", all...), api("STREAM.UPDATE", all...)),
			Why: "change limits and replicas of streams"},
		{Verb: Publish, Subjects: append(api("STREAM.DELETE", protocol.StreamLogs, streamMoving), root+"parked.log"),
			Why: "make the output's stream again when it gets more replicas"},
		{Verb: Publish, Subjects: append(api("STREAM.SNAPSHOT", allStreams...), "$JS.SNAPSHOT.ACK.>"),
			Why: "back up streams"},
		{Verb: Publish, Subjects: append(api("STREAM.RESTORE", allStreams...), "$JS.SNAPSHOT.RESTORE.>"),
			Why: "restore streams that do not exist any more"},
	}
}
