package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
)

// Assets says how the deployment's streams and buckets are made.
type Assets struct {
	Replicas    int           // 1 on one server, 3 on a cluster
	LogMaxAge   time.Duration // output is kept so long; default 360 h
	LogMaxBytes int64         // and so much of it; default 8 GiB
	Requests    int64         // requests that may wait; one more is refused with resource_exhausted; default 100,000
	Duplicates  time.Duration // a request whose id was published so recently is dropped by the server; later, the registry knows it; default 2 min
	BlobMaxAge  time.Duration // uploaded trees are kept so long; default 24 h
	LockTTL     time.Duration // of host locks; default 30 s, the least that survives a NATS fail-over
	ElectionTTL time.Duration // of the scheduler's lock; default 6 s
}

const (
	metadataDeployment = "boxfleet.deployment"

	// DefaultLockTTL is how long a host lock lasts without renewal.
	DefaultLockTTL = 30 * time.Second
	// DefaultElectionTTL is how long the scheduler's lock lasts without renewal.
	DefaultElectionTTL = 6 * time.Second

	hostTTL      = 60 * time.Second // of an entry in the table of hosts
	maxConsumers = 100_000          // the server's own default is 1,000

	provisionWithin = 30 * time.Second
)

func (a *Assets) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if a.Replicas == 0 {
		a.Replicas = 1
	}
	def(&a.LogMaxAge, 360*time.Hour)
	def(&a.Duplicates, 2*time.Minute)
	def(&a.BlobMaxAge, 24*time.Hour)
	def(&a.LockTTL, DefaultLockTTL)
	def(&a.ElectionTTL, DefaultElectionTTL)
	if a.LogMaxBytes == 0 {
		a.LogMaxBytes = 8 << 30
	}
	if a.Requests == 0 {
		a.Requests = 100_000
	}
}

// Provision makes every stream and bucket that is missing and brings the others up to date. It may
// run at the same time in several coordinators, and any number of times.
//
// It waits for a cluster that is just starting, until ctx ends, or for 30 s where ctx has no deadline.
func (c *Conn) Provision(ctx context.Context, a Assets) error {
	a.setDefaults()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, provisionWithin)
		defer cancel()
	}
	for _, cfg := range a.streams() {
		err := c.provisioned(ctx, cfg.Name, func(ctx context.Context) error {
			if cfg.Name == protocol.StreamEvents {
				deployment, err := c.deploymentID(ctx)
				if err != nil {
					return err
				}
				cfg.Metadata = map[string]string{metadataDeployment: deployment}
			}
			return c.makeStream(ctx, cfg)
		})
		if err != nil {
			return err
		}
	}
	err := c.provisioned(ctx, protocol.BucketBlobs, func(ctx context.Context) error { return c.makeBlobs(ctx, a) })
	if err == nil {
		err = c.provisioned(ctx, protocol.BucketImageFiles, func(ctx context.Context) error { return c.makeImageFiles(ctx, a) })
	}
	if err == nil {
		_, err = c.assets(ctx)
	}
	return err
}

// deploymentID is the id in the events stream, or a new one where there is no such stream.
func (c *Conn) deploymentID(ctx context.Context) (string, error) {
	stream, err := c.js.Stream(ctx, protocol.StreamEvents)
	if err == nil {
		return stream.CachedInfo().Config.Metadata[metadataDeployment], nil
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return strings.ToLower(ulid.Make().String()), nil
	}
	return "", translate(err, "read stream "+protocol.StreamEvents)
}

// provisioned makes something, and tries again where the cluster has no leader for it yet.
func (c *Conn) provisioned(ctx context.Context, name string, make func(ctx context.Context) error) error {
	for {
		try, cancel := c.bound(ctx)
		err := translate(make(try), "provision "+name)
		cancel()
		if !isOneOf(err, protocol.Unavailable, protocol.DeadlineExceeded) || !sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// makeStream makes the stream, or updates it. Two coordinators that make the events stream at the
// same time have different deployment ids: the second finds the first one's and keeps it.
func (c *Conn) makeStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	_, err := c.js.CreateStream(ctx, cfg)
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	if cfg.Name == protocol.StreamEvents {
		id, err := c.deploymentID(ctx)
		if err != nil {
			return err
		}
		cfg.Metadata = map[string]string{metadataDeployment: id}
	}
	_, err = c.js.UpdateStream(ctx, cfg)
	return err
}

func (a *Assets) streams() []jetstream.StreamConfig {
	derived := jetstream.DefaultPersistMode
	if a.Replicas == 1 {
		derived = jetstream.AsyncPersistMode // the log tells it again: need not share the log's fsyncs
	}
	streams := []jetstream.StreamConfig{
		{
			Name: protocol.StreamRequests, Subjects: []string{protocol.RequestFilter},
			Discard: jetstream.DiscardNew, MaxMsgs: a.Requests,
			MaxBytes: 4 << 30, MaxMsgSize: protocol.MaxSpecBytes + 64<<10, Duplicates: a.Duplicates,
		},
		{
			Name: protocol.StreamEvents, Subjects: []string{protocol.AppendFilter, protocol.EventFilter},
			SubjectTransform: &jetstream.SubjectTransformConfig{Source: protocol.AppendFilter, Destination: protocol.AppendTransform},
			RePublish:        &jetstream.RePublish{Source: protocol.EventAll, Destination: protocol.LiveAll},
			AllowDirect:      true, DenyDelete: true,
		},
		{
			Name: protocol.StreamLogs, Subjects: []string{protocol.LogFilter}, AllowDirect: true,
			MaxAge: a.LogMaxAge, MaxBytes: a.LogMaxBytes, PersistMode: derived,
		},
		{
			Name: protocol.StreamDead, Subjects: []string{protocol.DeadFilter}, MaxAge: 30 * 24 * time.Hour,
			MaxBytes: 1 << 30, AllowDirect: true,
		},
		writeOnce(protocol.BucketIDs),
		bucket(protocol.BucketExecIDs, 0),
		bucket(protocol.BucketSandboxes, 0),
		bucket(protocol.BucketImages, 0),
		bucket(protocol.BucketWorkers, hostTTL),
		bucket(protocol.BucketLocks, a.LockTTL),
		bucket(protocol.BucketElections, a.ElectionTTL),
	}
	for i := range streams {
		s := &streams[i]
		s.Replicas, s.MaxConsumers = a.Replicas, maxConsumers
	}
	return streams
}

// bucket is a key-value bucket as the KV API expects it, without direct gets: what is read here is
// read from the leader. ttl is the bucket's own, since a key's is lost on its first update.
func bucket(name string, ttl time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1, MaxAge: ttl, Discard: jetstream.DiscardNew,
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

func (c *Conn) makeBlobs(ctx context.Context, a Assets) error {
	_, err := c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket: protocol.BucketBlobs, TTL: a.BlobMaxAge, Storage: jetstream.FileStorage, Replicas: a.Replicas,
	})
	return err
}

// makeImageFiles makes the store of imported images' files, which are kept for as long as they are
// wanted.
func (c *Conn) makeImageFiles(ctx context.Context, a Assets) error {
	_, err := c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket: protocol.BucketImageFiles, Storage: jetstream.FileStorage, Replicas: a.Replicas,
	})
	return err
}

// Durability says in words what an acknowledged write survives, as far as this side can see.
func (c *Conn) Durability(ctx context.Context, syncAlways bool) (string, error) {
	meta, err := c.assets(ctx)
	if err != nil {
		return "", err
	}
	server := "NATS " + c.nc.ConnectedServerVersion()
	switch {
	case syncAlways:
		return fmt.Sprintf("each write is on disk before it is acknowledged (embedded %s, fsync on every write, %d replica(s))", server, meta.replicas), nil
	case meta.replicas > 1:
		return fmt.Sprintf("%d replicas on %s: survives the loss of a minority of servers; survives a power loss of all only where each server has sync_interval: always, which cannot be seen from here", meta.replicas, server), nil
	}
	return fmt.Sprintf("one replica on %s: survives the end of the process; survives a power loss only where the server has sync_interval: always, which cannot be seen from here", server), nil
}

func splitURLs(s string) []string {
	var urls []string
	for _, u := range strings.Split(s, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	return urls
}
