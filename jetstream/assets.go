package jetstream

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Assets configures the deployment's streams and buckets. A zero field keeps the value of an existing stream or bucket
// and gives a new one the default. A value is refused if it would make an existing stream or bucket store less, or
// store it less safely.
type Assets struct {
	Replicas        int           // copies of each stream; default 1; only [Growth.Grow] changes the number
	LogMaxAge       time.Duration // how long output is stored; default 360 h
	LogMaxBytes     int64         // size limit of stored output; default 8 GiB
	EventMaxBytes   int64         // size limit of the event log; new work is refused before the log is full; default 8 GiB
	Requests        int64         // limit of waiting requests; new requests fail with resource_exhausted; default 100,000
	Duplicates      time.Duration // the server's duplicate window for message ids; default 100 ms, its minimum
	BlobMaxAge      time.Duration // how long uploaded trees are stored; default 24 h
	BlobMaxBytes    int64         // size limit of all uploaded trees; further uploads are refused; default 4 GiB
	ImageMaxBytes   int64         // size limit of all imported image files; further imports are refused; default 16 GiB
	SegmentMaxBytes int64         // size limit of all segments; further messages stay in the event log; default 8 GiB
	TableMaxBytes   int64         // size limit of each table, such as ids, snapshots and images; default 1 GiB
	LockTTL         time.Duration // life of an unrenewed host lock; default 30 s, the shortest to survive a NATS failover
	ElectionTTL     time.Duration // life of an unrenewed scheduler lock; default 2.5 s
}

const (
	metadataDeployment = "boxfleet.deployment"

	// DefaultLockTTL is how long a host lock lasts without renewal.
	DefaultLockTTL = 30 * time.Second
	// DefaultElectionTTL is how long the scheduler's lock lasts without renewal.
	DefaultElectionTTL = 2500 * time.Millisecond

	hostTTL      = 60 * time.Second // how long an entry in the table of hosts lasts without renewal
	maxConsumers = 100_000          // the server's own default is 1,000

	smallTable      = 64 << 20 // size limit of tables with at most one row for each host
	maxDeadLetters  = 1 << 30  // size limit of all dead letters
	maxRequestBytes = 4 << 30  // size limit of all waiting requests
)

// asset is the configuration of one stream or bucket and the settings that an operator can change.
type asset struct {
	config   jetstream.StreamConfig
	settings []setting
}

// setting is one value of a stream's configuration.
type setting struct {
	field    string // name in the configuration, such as "log_max_age"; empty if operators cannot set the value
	wanted   int64  // the wanted value; 0 keeps the current value, and gives a new stream the default
	standard int64  // the default value
	value    func(*jetstream.StreamConfig) *int64
	free     bool // lowering the value loses no data; if wanted is 0, existing streams get the default too
	late     bool // existing streams without this limit get the default
	format   func(int64) string
}

func (s setting) orStandard() int64 {
	if s.wanted != 0 {
		return s.wanted
	}
	return s.standard
}

func maxAge(field string, wanted, standard time.Duration) setting {
	return setting{field: field, wanted: int64(wanted), standard: int64(standard), format: formatAge,
		value: func(c *jetstream.StreamConfig) *int64 { return (*int64)(&c.MaxAge) }}
}

func maxBytes(field string, wanted, standard int64) setting {
	return setting{field: field, wanted: wanted, standard: standard, late: true, format: formatBytes,
		value: func(c *jetstream.StreamConfig) *int64 { return &c.MaxBytes }}
}

func formatAge(v int64) string   { return time.Duration(v).String() }
func formatBytes(v int64) string { return protocol.Bytes(v).String() }

// assets returns all streams and buckets in the order in which they are made. The number of replicas and the persist
// mode depend on the existing deployment and are not included.
func (a *Assets) assets() []asset {
	table := []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}
	all := []asset{
		a.requests(),
		a.events(),
		{config: streamOf(protocol.StreamLogs, protocol.OutputFilter, protocol.LogFilter), settings: []setting{
			maxAge("log_max_age", a.LogMaxAge, 360*time.Hour), maxBytes("log_max_bytes", a.LogMaxBytes, 8<<30),
		}},
		{config: streamOf(protocol.StreamDead, protocol.DeadFilter), settings: []setting{
			maxAge("", 0, 30*24*time.Hour), maxBytes("", 0, maxDeadLetters),
		}},
		{config: writers(), settings: []setting{maxBytes("", 0, smallTable)}},
		{config: writeOnce(protocol.BucketIDs), settings: table},
		{config: bucket(protocol.BucketNames), settings: table},
		{config: bucket(protocol.BucketExecIDs), settings: table},
		{config: bucket(protocol.BucketSandboxes), settings: table},
		{config: bucket(protocol.BucketImages), settings: table},
		{config: bucket(protocol.BucketHosts), settings: []setting{maxBytes("", 0, smallTable)}},
		{config: bucket(protocol.BucketWorkers), settings: []setting{
			maxAge("", 0, hostTTL), maxBytes("", 0, smallTable),
		}},
		{config: bucket(protocol.BucketLocks), settings: []setting{
			maxAge("lock_ttl", a.LockTTL, DefaultLockTTL), maxBytes("", 0, smallTable),
		}},
		{config: bucket(protocol.BucketElections), settings: []setting{
			maxAge("election_ttl", a.ElectionTTL, DefaultElectionTTL), maxBytes("", 0, smallTable),
		}},
		{config: objects(protocol.BucketBlobs), settings: []setting{
			maxAge("blob_max_age", a.BlobMaxAge, 24*time.Hour), maxBytes("blob_max_bytes", a.BlobMaxBytes, 4<<30),
		}},
		{config: bucket(protocol.BucketHistories), settings: table},
		{config: secretVersions(), settings: table},
		{config: objects(protocol.BucketSegments), settings: []setting{
			maxBytes("segment_max_bytes", a.SegmentMaxBytes, 8<<30),
		}},
		{config: objects(protocol.BucketImageFiles), settings: []setting{
			maxBytes("image_max_bytes", a.ImageMaxBytes, 16<<30),
		}},
	}
	for i := range all {
		c := &all[i].config
		c.MaxConsumers, c.Storage = maxConsumers, jetstream.FileStorage
		c.Description = descriptionOf(c.Name, "")
		if c.MaxMsgsPerSubject == 0 {
			c.MaxMsgsPerSubject = -1
		}
		for _, s := range all[i].settings {
			*s.value(c) = s.orStandard()
		}
	}
	return all
}

func streamOf(name string, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: name, Subjects: subjects, AllowDirect: true}
}

func (a *Assets) events() asset {
	return asset{
		config: jetstream.StreamConfig{
			Name: protocol.StreamEvents, Subjects: []string{protocol.AppendFilter, protocol.EventFilter},
			SubjectTransform: &jetstream.SubjectTransformConfig{
				Source: protocol.AppendFilter, Destination: protocol.AppendTransform,
			},
			RePublish:   &jetstream.RePublish{Source: protocol.EventAll, Destination: protocol.LiveAll},
			AllowDirect: true, DenyDelete: true, Discard: jetstream.DiscardNew,
		},
		settings: []setting{maxBytes("event_max_bytes", a.EventMaxBytes, 8<<30)},
	}
}

func (a *Assets) requests() asset {
	return asset{
		config: jetstream.StreamConfig{
			Name: protocol.StreamRequests, Subjects: []string{protocol.RequestFilter, protocol.UserRequestFilter},
			Discard: jetstream.DiscardNew, MaxMsgSize: protocol.MaxSpecBytes + 64<<10,
		},
		settings: []setting{
			{
				field:    "requests",
				wanted:   a.Requests,
				standard: 100_000,
				format:   func(v int64) string { return strconv.FormatInt(v, 10) },
				value:    func(c *jetstream.StreamConfig) *int64 { return &c.MaxMsgs },
			},
			{
				field:    "duplicates",
				wanted:   int64(a.Duplicates),
				standard: int64(100 * time.Millisecond),
				free:     true,
				format:   formatAge,
				value:    func(c *jetstream.StreamConfig) *int64 { return (*int64)(&c.Duplicates) },
			},
			maxBytes("", 0, maxRequestBytes),
		},
	}
}

// bucket configures a key-value bucket as the KV API expects it, but without direct gets: Boxfleet reads from the
// leader. A maximum age is set for the whole bucket, because a TTL given to one key is lost when the key is updated. No
// stream allows rollups: with a rollup header, a process that may write one key could erase all keys.
func bucket(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
		DenyDelete: true,
	}
}

// secretVersions configures the bucket of secrets, which keeps several versions of each key.
func secretVersions() jetstream.StreamConfig {
	c := bucket(protocol.BucketSecrets)
	c.MaxMsgsPerSubject = protocol.MaxSecretVersions
	return c
}

// writeOnce configures a bucket whose keys are written once. Its stream keeps one message per key and refuses further
// messages, deletes and purges. It has no maximum age.
func writeOnce(name string) jetstream.StreamConfig {
	return writtenOnce("KV_"+name, "$KV."+name+".>")
}

func writers() jetstream.StreamConfig {
	return writtenOnce(protocol.StreamWriters, protocol.WritersFilter)
}

func writtenOnce(name, subjects string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
		DenyDelete: true, DenyPurge: true,
	}
}

// objects configures a bucket of the object store in the same way as the NATS client does, but without rollups.
func objects(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "OBJ_" + name, Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Discard: jetstream.DiscardNew, AllowDirect: true,
	}
}
