package coordinator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const chunkBytes = 128 << 10 // each piece of an upload in these tests is two chunks

// uploader sends uploads as a hostile client does, without the SDK.
type uploader struct {
	d  *deployment
	nc *nats.Conn
}

func (d *deployment) uploader() *uploader {
	d.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(d.server))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(nc.Close)
	return &uploader{d, nc}
}

// tell sends a message of an upload. err is the answer's error, or nil.
func (u *uploader) tell(upload, piece string, data []byte) (answer *protocol.Upload, err error) {
	return u.tellWithin(20*time.Second, upload, piece, data)
}

func (u *uploader) tellWithin(limit time.Duration, upload, piece string, data []byte) (*protocol.Upload, error) {
	m := nats.NewMsg(protocol.BlobSubject("acme", protocol.NoUser, upload, piece))
	m.Data = data
	raw, err := u.nc.RequestMsg(m, limit)
	if err != nil {
		return nil, err
	}
	reply := &protocol.Reply{}
	if err := protocol.DecodeAs(raw.Header.Get(protocol.HeaderContentType), raw.Data, reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply.Upload, nil
}

// begin begins an upload as soon as a coordinator has room for it.
func (u *uploader) begin(digest string) (id string) {
	for {
		begun, err := u.tell(digest, "begin", nil)
		if err == nil {
			return begun.ID
		}
		if protocol.AsError(err).Reason != protocol.ReasonTooManyReads {
			u.d.t.Errorf("an upload does not begin: %v", err)
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// pieces sends pieces until one is refused. It returns how many were taken, and the refusal.
func (u *uploader) pieces(id string, from, most int) (taken int, err error) {
	for ; taken < most; taken++ {
		if _, err := u.tell(id, fmt.Sprint(from+taken), make([]byte, 2*chunkBytes)); err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// chunks returns how many chunks of uploads are stored.
func (d *deployment) chunks() (n int) {
	d.t.Helper()
	d.raw(func(js natsjs.JetStream) error {
		s, err := js.Stream(d.t.Context(), "OBJ_"+protocol.BucketBlobs)
		if err != nil {
			return err
		}
		info, err := s.Info(d.t.Context(), natsjs.WithSubjectFilter("$O."+protocol.BucketBlobs+".C.*"))
		if err == nil {
			for _, count := range info.State.Subjects {
				n += int(count)
			}
		}
		return err
	})
	return n
}

func wantQuotaUploads(t *testing.T, what string, err error) {
	t.Helper()
	if protocol.AsError(err) == nil || protocol.AsError(err).Reason != protocol.ReasonQuotaUploads {
		t.Errorf("%s fails with %v, want a refusal because of the quota", what, err)
	}
}

// Parallel uploads all name the same digest, which is not the digest of their content. Together they store no more than
// the quota allows. When they have ended, the whole quota is free.
func TestUploadsOfOneInventedDigestStoreAtMostTheQuota(t *testing.T) {
	t.Parallel()
	const limit, uploads = 8 * chunkBytes, 20
	d := newDeployment(t)
	defer d.ledByTheFirst(quotasOf(fmt.Sprintf("acme: {uploads: %d}", limit)))()
	most, sampled := 0, make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(sampled)
		for ctx.Err() == nil {
			most = max(most, d.chunks())
		}
	}()
	u := d.uploader()
	digest, group := digestOf("invented"), sync.WaitGroup{}
	for range uploads {
		group.Go(func() {
			id := u.begin(digest)
			if _, err := u.pieces(id, 0, limit/chunkBytes); err != nil {
				wantQuotaUploads(t, "a piece", err)
			}
			if _, err := u.tell(id, "end", nil); err == nil {
				t.Error("content without its digest is stored")
			}
		})
	}
	group.Wait()
	cancel()
	<-sampled
	t.Logf("at most %d chunks were stored", most)
	if most*chunkBytes > limit {
		t.Errorf("%d chunks were stored at once, the quota allows %d", most, limit/chunkBytes)
	}
	if most == 0 {
		t.Error("no chunk was ever stored, so the test does not show anything")
	}
	if n := d.chunks(); n != 0 {
		t.Errorf("%d chunks of failed uploads stay", n)
	}
	if err := d.upload("acme", limit, 'a'); err != nil {
		t.Errorf("an upload of exactly the quota fails with %v", err)
	}
}

// Equal uploads at once need room for each of them. Once they are stored, they count once.
func TestEqualUploadsCountOnceInTheEnd(t *testing.T) {
	t.Parallel()
	const size, limit, uploads = 100 << 10, 1 << 20, 8
	d := newDeployment(t)
	defer d.ledByTheFirst(quotasOf(fmt.Sprintf("acme: {uploads: %d}", limit)))()
	var group sync.WaitGroup
	for range uploads {
		group.Go(func() {
			if err := d.upload("acme", size, 'a'); err != nil {
				t.Errorf("an upload fails with %v", err)
			}
		})
	}
	group.Wait()
	if err := d.upload("acme", limit-size, 'b'); err != nil {
		t.Errorf("an upload of all the room that one copy leaves fails with %v", err)
	}
	wantQuotaUploads(t, "an upload of one byte more", d.upload("acme", 1, 'c'))
}

// spread begins uploads of one piece each, all of one invented digest. Each of two coordinators receives some of them,
// because one coordinator alone receives fewer uploads of a tenant.
func (u *uploader) spread() (ids []string) {
	u.d.t.Helper()
	for range spreadUploads {
		id := u.begin(digestOf("invented"))
		if _, err := u.pieces(id, 0, 1); err != nil {
			u.d.t.Fatalf("a piece within the quota is refused: %v", err)
		}
		ids = append(ids, id)
	}
	u.d.eventually("the chunks are stored", func() bool { return u.d.chunks() == 2*spreadUploads })
	return ids
}

// abort ends uploads. It returns the number of uploads that no coordinator has received. A message to a process that
// has just been killed may be lost without an answer, so abort repeats messages, as a client does.
func (u *uploader) abort(ids []string) (dead int) {
	u.d.t.Helper()
	for _, id := range ids {
		err := error(nats.ErrTimeout)
		for try := 0; try < 5 && errors.Is(err, nats.ErrTimeout); try++ {
			_, err = u.tellWithin(2*time.Second, id, "abort", nil)
		}
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			dead++
		case protocol.CodeOf(err) != protocol.Cancelled:
			u.d.t.Errorf("an aborted upload is answered with %v", err)
		}
	}
	return dead
}

const spreadUploads, spreadLimit = 12, 30 * chunkBytes // the quota has room for three more pieces

// An upload in progress counts after the leader has changed, although it has not grown since.
func TestAnUploadInProgressCountsAfterAFailover(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	f := quotasOf(fmt.Sprintf("acme: {uploads: %d}", spreadLimit))
	first, stopFirst := d.inMemory(f.config("c1"))
	d.leads(first)
	second, stopSecond := d.inMemory(f.config("c2"))
	defer stopSecond()
	u := d.uploader()
	ids := u.spread()
	stopFirst()
	d.leads(second)
	for i := range ids { // free a slot: the second coordinator may already receive as many uploads as it takes
		if u.abort(ids[i:i+1]) == 0 {
			ids = slices.Delete(ids, i, i+1)
			break
		}
	}
	left := d.chunks()
	if left == 0 || left == 2*len(ids) {
		t.Fatalf("%d chunks are stored after one of two coordinators has ended", left)
	}
	wantQuotaUploads(t, "an upload of more than the free room", d.upload("acme", spreadLimit-left*chunkBytes+1, 'x'))
	if err := d.upload("acme", spreadLimit-left*chunkBytes, 'x'); err != nil {
		t.Errorf("an upload of exactly the free room fails with %v", err)
	}
	if dead := u.abort(ids); 2*(len(ids)-dead) != left {
		t.Errorf("%d uploads have ended with their coordinator, and %d chunks were left", dead, left)
	}
	if err := d.upload("acme", left*chunkBytes, 'y'); err != nil {
		t.Errorf("an upload of the room of the aborted uploads fails with %v", err)
	}
}

// A coordinator process that is killed leaves chunks of its uploads. They count until the leader has removed them. Then
// their room is free.
func TestUploadsOfAKilledCoordinatorCountUntilTheirChunksAreRemoved(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	quotas := fmt.Sprintf("acme: {uploads: %d}", spreadLimit)
	cfg := quotasOf(quotas).config("c1")
	cfg.Timing.Parts = 12 * time.Second // longer than a claim may be used
	c1, stop := d.inMemory(cfg)
	defer stop()
	d.leads(c1)
	kill := d.process(quotas)
	u := d.uploader()
	ids := u.spread()
	kill()
	dead := u.abort(ids)
	if dead == 0 {
		t.Fatal("the process has received no upload")
	}
	work := c1.projection.work
	eventually.Holds(t, 30*time.Second, "the claims of the dead uploads have expired", func() bool {
		return len(work.tenants.expired(c1.conn.SinceBoot())) == dead
	})
	d.schedulerPassed(c1)
	if n := d.chunks(); n != 2*dead {
		t.Fatalf("%d chunks of %d dead uploads are stored", n, dead)
	}
	wantQuotaUploads(t, "an upload of more than the free room", d.upload("acme", spreadLimit-2*dead*chunkBytes+1, 'x'))
	eventually.Holds(t, 30*time.Second, "the chunks are removed and their room is free", func() bool {
		return d.chunks() == 0 && d.upload("acme", spreadLimit, 'y') == nil
	})
}

// coordinatorProcess is the environment variable that makes the test binary run a coordinator, which a test can kill.
// Its value has two lines: the address of the server, and the quotas.
const coordinatorProcess = "BOXFLEET_TEST_COORDINATOR"

// runProcess runs a coordinator until standard input ends.
func runProcess(config string) {
	url, quotas, _ := strings.Cut(config, "\n")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // returns when the test ends and closes stdin
		cancel()
	}()
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: url, Name: "process"})
	if err != nil {
		panic(err)
	}
	cfg := quotasOf(quotas).config("process")
	cfg.Conn, cfg.OnReady = conn, func() { fmt.Println("ready") }
	cfg.Assets.Duplicates = duplicates
	if err := Run(ctx, cfg); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// process runs a coordinator in a process of its own until kill is called, which kills it as kill -9 does.
func (d *deployment) process(quotas string) (kill func()) {
	d.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), coordinatorProcess+"="+d.server.ClientURL()+"\n"+quotas)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		clients := d.server.NumClients()
		if err := cmd.Process.Kill(); err != nil {
			d.t.Error(err)
		}
		_ = stdin.Close() // the process is dead
		_ = cmd.Wait()    // fails, because the process was killed
		d.eventually("the server knows that the process has ended", func() bool { return d.server.NumClients() < clients })
	})
	d.t.Cleanup(kill)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		d.t.Fatalf("the coordinator process prints %q, %v", line, err)
	}
	return kill
}

// An upload for which the store has no room leaves neither chunks nor a claim.
func TestAnUploadThatAFullStoreRefusesLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	cfg := quotasOf("acme: {uploads: 4MiB}").config("c1")
	cfg.Assets.BlobMaxBytes = 3 << 20
	c1, stop := d.inMemory(cfg)
	defer stop()
	d.leads(c1)
	for range 3 {
		err := d.upload("acme", 4<<20, 'a')
		if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonStoreFull {
			t.Fatalf("an upload beyond the store's room fails with %v", err)
		}
		if n := d.chunks(); n != 0 {
			t.Errorf("%d chunks of the refused upload stay", n)
		}
	}
	if err := d.upload("acme", 2<<20, 'b'); err != nil {
		t.Errorf("an upload that fits fails with %v", err)
	}
}

// Uploads count until they are removed or expire. An upload that is stored again counts once.
func TestStoredUploadsCountUntilTheyExpire(t *testing.T) {
	t.Parallel()
	const life = time.Hour
	began := time.Now()
	u := newUploadUsage()
	u.reset(life)
	set := func(digest, id string, bytes int64, after time.Duration) {
		u.set(jetstream.StoredUpload{Tenant: "t", Digest: digest, ID: id, Bytes: bytes, At: began.Add(after)})
	}
	want := func(n protocol.Bytes, but string, after time.Duration) {
		t.Helper()
		if got := u.of("t", but, began.Add(after)); got != n {
			t.Errorf("after %s, uploads except %q have %d bytes, want %d", after, but, got, n)
		}
	}
	set("a", "a1", 1, 0)
	set("b", "b1", 10, time.Minute)
	set("c", "c1", 100, 2*time.Minute)
	set("a", "a2", 1, 40*time.Minute) // stored again
	want(111, "", 40*time.Minute)
	want(101, "b", 40*time.Minute)
	want(111, "x", life)
	want(101, "", life+2*time.Minute)
	u.set(jetstream.StoredUpload{Tenant: "t", Digest: "c", Removed: true})
	want(1, "", life+2*time.Minute)
	want(0, "", life+41*time.Minute)
	if len(u.stored) != 0 || len(u.sums) != 0 || len(u.expiring) != 0 {
		t.Errorf("in the end, %d uploads, %d sums and %d times are kept", len(u.stored), len(u.sums), len(u.expiring))
	}
}
