package jetstream

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Assets says how the deployment's streams and buckets are made. Zero means what is there, and the
// default where there is nothing yet. A value that would weaken what is there is refused.
type Assets struct {
	Replicas        int           // copies of each stream; default 1. Only [Conn.Grow] changes them
	LogMaxAge       time.Duration // output is kept for this time; default 360 h
	LogMaxBytes     int64         // and up to this size; default 8 GiB
	EventMaxBytes   int64         // the event log refuses appends beyond; new work is refused before; default 8 GiB
	Requests        int64         // requests that may wait; one more is refused with resource_exhausted; default 100,000
	Duplicates      time.Duration // a request whose message id was published less than this ago is dropped by the server, unanswered; default 100 ms, the server's least
	BlobMaxAge      time.Duration // uploaded trees are kept for this time; default 24 h
	BlobMaxBytes    int64         // and up to this size; one more is refused; default 4 GiB
	ImageMaxBytes   int64         // files of imported images; one more is refused; default 16 GiB
	SegmentMaxBytes int64         // older parts of histories, compressed; one more stays in the event log; default 8 GiB
	TableMaxBytes   int64         // each table of ids, snapshots and images; default 1 GiB
	LockTTL         time.Duration // of host locks; default 30 s, the least that survives a NATS fail-over
	ElectionTTL     time.Duration // of the scheduler's lock; default 2.5 s
}

const (
	metadataDeployment = "boxfleet.deployment"

	// DefaultLockTTL is how long a host lock lasts without renewal.
	DefaultLockTTL = 30 * time.Second
	// DefaultElectionTTL is how long the scheduler's lock lasts without renewal.
	DefaultElectionTTL = 2500 * time.Millisecond

	hostTTL      = 60 * time.Second // of an entry in the table of hosts
	maxConsumers = 100_000          // the server's own default is 1,000

	smallTable = 64 << 20 // limit of tables that hold one row for each host, or less
	deadMost   = 1 << 30
	waitMost   = 4 << 30 // bytes of waiting requests
)

// asset is one stream or bucket: how it is made, and which of its settings an operator has.
type asset struct {
	config   jetstream.StreamConfig
	settings []setting
}

// setting is one value of a stream's configuration.
type setting struct {
	field    string // of the configuration, such as "log_max_age"; empty where nobody can set it
	wanted   int64  // 0: what is there, else the default
	standard int64  // the default
	value    func(*jetstream.StreamConfig) *int64
	free     bool // either way is no loss: where nobody names it, it is the default
	late     bool // streams that were made before there was such a limit get the default
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

// assets are all streams and buckets, in the order in which they are made. Replicas and the persist
// mode depend on what is there, and are not in them.
func (a *Assets) assets() []asset {
	all := []asset{
		a.requests(),
		{config: jetstream.StreamConfig{
			Name: protocol.StreamEvents, Subjects: []string{protocol.AppendFilter, protocol.EventFilter},
			SubjectTransform: &jetstream.SubjectTransformConfig{Source: protocol.AppendFilter, Destination: protocol.AppendTransform},
			RePublish:        &jetstream.RePublish{Source: protocol.EventAll, Destination: protocol.LiveAll},
			AllowDirect:      true, DenyDelete: true, Discard: jetstream.DiscardNew,
		}, settings: []setting{maxBytes("event_max_bytes", a.EventMaxBytes, 8<<30)}},
		{config: jetstream.StreamConfig{Name: protocol.StreamLogs, Subjects: []string{protocol.LogFilter}, AllowDirect: true},
			settings: []setting{maxAge("log_max_age", a.LogMaxAge, 360*time.Hour), maxBytes("log_max_bytes", a.LogMaxBytes, 8<<30)}},
		{config: jetstream.StreamConfig{Name: protocol.StreamDead, Subjects: []string{protocol.DeadFilter}, AllowDirect: true},
			settings: []setting{maxAge("", 0, 30*24*time.Hour), maxBytes("", 0, deadMost)}},
		{config: writeOnce(protocol.BucketIDs), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: bucket(protocol.BucketNames), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: bucket(protocol.BucketExecIDs), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: bucket(protocol.BucketSandboxes), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: bucket(protocol.BucketImages), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: bucket(protocol.BucketHosts), settings: []setting{maxBytes("", 0, smallTable)}},
		{config: bucket(protocol.BucketWorkers), settings: []setting{maxAge("", 0, hostTTL), maxBytes("", 0, smallTable)}},
		{config: bucket(protocol.BucketLocks), settings: []setting{maxAge("lock_ttl", a.LockTTL, DefaultLockTTL), maxBytes("", 0, smallTable)}},
		{config: bucket(protocol.BucketElections), settings: []setting{maxAge("election_ttl", a.ElectionTTL, DefaultElectionTTL), maxBytes("", 0, smallTable)}},
		{config: objects(protocol.BucketBlobs), settings: []setting{maxAge("blob_max_age", a.BlobMaxAge, 24*time.Hour), maxBytes("blob_max_bytes", a.BlobMaxBytes, 4<<30)}},
		{config: bucket(protocol.BucketHistories), settings: []setting{maxBytes("table_max_bytes", a.TableMaxBytes, 1<<30)}},
		{config: objects(protocol.BucketSegments), settings: []setting{maxBytes("segment_max_bytes", a.SegmentMaxBytes, 8<<30)}},
		{config: objects(protocol.BucketImageFiles), settings: []setting{maxBytes("image_max_bytes", a.ImageMaxBytes, 16<<30)}},
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

func (a *Assets) requests() asset {
	return asset{
		config: jetstream.StreamConfig{
			Name: protocol.StreamRequests, Subjects: []string{protocol.RequestFilter},
			Discard: jetstream.DiscardNew, MaxMsgSize: protocol.MaxSpecBytes + 64<<10,
		},
		settings: []setting{
			{field: "requests", wanted: a.Requests, standard: 100_000, format: func(v int64) string { return strconv.FormatInt(v, 10) },
				value: func(c *jetstream.StreamConfig) *int64 { return &c.MaxMsgs }},
			{field: "duplicates", wanted: int64(a.Duplicates), standard: int64(100 * time.Millisecond), free: true, format: formatAge,
				value: func(c *jetstream.StreamConfig) *int64 { return (*int64)(&c.Duplicates) }},
			maxBytes("", 0, waitMost),
		},
	}
}

// bucket is a key-value bucket as the KV API expects it, without direct gets: what is read here is
// read from the leader. Its age is the bucket's own, since a key's is lost on its first update.
func bucket(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
		AllowRollup: true, DenyDelete: true,
	}
}

// writeOnce is a bucket whose keys can be made once: one message per key, the newer refused, no
// deletes, no purges, no age.
func writeOnce(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
		DenyDelete: true, DenyPurge: true,
	}
}

// objects is a bucket of the object store, as its API makes one.
func objects(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "OBJ_" + name, Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Discard: jetstream.DiscardNew, AllowRollup: true, AllowDirect: true,
	}
}
