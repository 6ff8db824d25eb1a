package jetstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// A client uploads through a coordinator, because it has no right to the object store:
//
//	blob.<tenant>.<user>.<digest>.begin   a coordinator answers that it has the content, or with the id of an upload
//	blob.<tenant>.<user>.<upload>.<n>     piece n, from 0; the coordinator that chose the id acknowledges the piece
//	blob.<tenant>.<user>.<upload>.end     that coordinator stores the content if the content has the digest
//	blob.<tenant>.<user>.<upload>.abort   that coordinator discards the upload
//
// If the coordinator dies, the client begins again.

const (
	// uploadPiece is how many bytes of an upload one message has.
	uploadPiece = 256 << 10
	// uploadWindow is how many pieces a client sends before the first of them is acknowledged.
	uploadWindow = 4
	// uploadsAtOnce bounds how many uploads one coordinator receives at the same time. This also bounds the memory that
	// uploads take: the coordinator holds at most uploadWindow pieces of each upload.
	uploadsAtOnce = 32
	// uploadIdle is how long a coordinator waits for the next piece before it discards the upload.
	uploadIdle = 30 * time.Second
	// uploadFirst is how long a coordinator waits for the first piece. If the client did not receive the coordinator's
	// answer, it sends no piece but begins again.
	uploadFirst = 5 * time.Second
	// uploadsPerTenant bounds the uploads of one tenant through one coordinator.
	uploadsPerTenant = 8
	// beginningsAtOnce bounds how many beginnings a coordinator answers at the same time. lingering bounds how many
	// ended uploads still answer repeated messages.
	beginningsAtOnce = 64
	lingering        = 256
	// receiverQueue is how many messages of one upload may wait while an earlier one is stored.
	receiverQueue = 4 * uploadWindow

	uploadBegin = "begin"
	uploadEnd   = "end"
	uploadAbort = "abort"

	// uploadTurn is how long a coordinator lets a new upload wait while it receives too many others. uploadTurns is how
	// long a client tries to begin an upload. The client asks again after askAgain.
	uploadTurn  = 1500 * time.Millisecond
	uploadTurns = 2 * time.Minute
)

// Uploads is a coordinator's side of uploads.
type Uploads struct {
	*core

	blobs  *BlobStore
	limits UploadLimits
	slots  chan struct{}
	ended  chan struct{} // slots for ended uploads that still answer repeated messages

	mu      sync.Mutex
	running sync.WaitGroup
	stopped bool           // no more goroutines may start; guarded by mu
	tenants map[string]int // number of uploads, by tenant; guarded by mu
}

// run runs f in a goroutine, for which ServeUploads waits. If ServeUploads is already returning, run does nothing.
func (u *Uploads) run(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.stopped {
		u.running.Go(f)
	}
}

// stop waits for the goroutines that run has started.
func (u *Uploads) stop() {
	u.mu.Lock()
	u.stopped = true
	u.mu.Unlock()
	u.running.Wait()
}

// claim counts an upload of a tenant. It returns false if the tenant has too many uploads.
func (u *Uploads) claim(tenant string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tenants[tenant] >= uploadsPerTenant {
		return false
	}
	u.tenants[tenant]++
	return true
}

func (u *Uploads) unclaim(tenant string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tenants[tenant]--; u.tenants[tenant] == 0 {
		delete(u.tenants, tenant)
	}
}

// UploadLimits are the limits of each upload that a coordinator receives.
type UploadLimits struct {
	MaxBytes protocol.Bytes // size of the content
	Idle     time.Duration  // longest pause between two pieces; default 30 s

	// Room returns the room that a tenant has for an upload. id is the id of the object that the upload becomes. Room may
	// be nil: the tenants have no limits.
	Room func(tenant, digest, id string) UploadRoom
}

// ServeUploads receives uploads until ctx ends, and then discards those that are not complete.
func (b *BlobStore) ServeUploads(ctx context.Context, limits UploadLimits) error {
	limits.Idle = cmp.Or(limits.Idle, uploadIdle)
	u := &Uploads{core: b.core, blobs: b, limits: limits, slots: make(chan struct{}, uploadsAtOnce),
		ended: make(chan struct{}, lingering), tenants: map[string]int{}}
	defer u.stop()
	beginnings := make(chan struct{}, beginningsAtOnce)
	begin := protocol.BlobSubject("*", "*", "*", uploadBegin)
	sub, err := u.nc.QueueSubscribe(begin, "coordinators", func(m *nats.Msg) {
		select {
		case beginnings <- struct{}{}:
		case <-ctx.Done():
			return
		}
		u.run(func() {
			defer func() { <-beginnings }()
			u.begin(ctx, m)
		})
	})
	if err != nil {
		return translate(err, "receive uploads")
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	<-ctx.Done()
	return ctx.Err()
}

// begin answers a client that wants to begin an upload.
func (u *Uploads) begin(ctx context.Context, m *nats.Msg) {
	tenant, user, digest, _, ok := protocol.SplitBlobSubject(m.Subject)
	if !ok {
		return // no other subject is subscribed to
	}
	if protocol.ValidateID("tenant", tenant) != nil || user != "" && protocol.ValidateUser("user", user) != nil {
		return // no client can have this tenant or user
	}
	if err := protocol.ValidateDigest("digest", digest); err != nil {
		u.answer(m, nil, err)
		return
	}
	// The client asks again after askAgain, and would never get a later answer.
	within, cancel := context.WithTimeout(ctx, uploadTurn)
	defer cancel()
	fresh, err := u.blobs.FreshBlob(within, tenant, digest)
	if err != nil || fresh {
		u.answer(m, &protocol.Upload{Stored: fresh}, err)
		return
	}
	leave, err := u.enter(within, tenant)
	if err != nil {
		u.answer(m, nil, err)
		return
	}
	r := newReceiver(u, tenant, digest)
	from := cmp.Or(user, protocol.NoUser)
	// Pieces that arrive while the subscription starts are not lost. The client sends pieces only after the answer, and
	// the server handles the subscription before the answer, because this connection sends them in this order.
	sub, err := u.nc.Subscribe(protocol.BlobSubject(tenant, from, r.id, "*"), r.receive)
	if err == nil {
		err = sub.SetPendingLimits(receiverQueue, receiverQueue*int(u.nc.MaxPayload()))
	}
	if err != nil {
		leave()
		u.answer(m, nil, translate(err, "receive an upload"))
		return
	}
	u.run(func() {
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
		r.store(ctx)
		leave()
		select {
		case u.ended <- struct{}{}: // the client may repeat its last message, whose answer was lost
			backoff.Sleep(ctx, u.timeout)
			<-u.ended
		default:
		}
	})
	u.answer(m, &protocol.Upload{ID: r.id}, u.Flush(ctx))
}

// enter counts one more upload of a tenant, and waits until fewer than uploadsAtOnce uploads are being received. Call
// leave after the upload. Error: resource_exhausted if the tenant has too many uploads, or if ctx ends during the wait.
func (u *Uploads) enter(ctx context.Context, tenant string) (leave func(), err error) {
	if !u.claim(tenant) {
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"this coordinator already receives %d uploads of the tenant: try again later", uploadsPerTenant)
	}
	select {
	case u.slots <- struct{}{}:
		return func() { <-u.slots; u.unclaim(tenant) }, nil
	case <-ctx.Done():
		u.unclaim(tenant)
		return nil, protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooManyReads,
			"this coordinator already receives %d uploads: try again later", uploadsAtOnce)
	}
}

// answer sends the reply to a message of an upload. The reply may be lost.
func (u *Uploads) answer(m *nats.Msg, upload *protocol.Upload, err error) {
	if tenant, user, _, _, _ := protocol.SplitBlobSubject(m.Subject); !protocol.MayReply(m.Reply, tenant, user) {
		return
	}
	reply := &protocol.Reply{Version: protocol.Version, Upload: upload}
	if err != nil {
		reply = &protocol.Reply{Version: protocol.Version, Error: protocol.AsError(err)}
	}
	out := nats.NewMsg(m.Reply)
	out.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	out.Data = protocol.Encode(reply)
	if err := u.nc.PublishMsg(out); err != nil {
		u.log.Warn("could not send an answer to a client that uploads", "subject", m.Subject, "error", err)
	}
}

// receiver puts the pieces of one upload in order and stores them. Its subscription calls receive for one message
// after another.
type receiver struct {
	uploads        *Uploads
	tenant, digest string
	id             string // id of the upload, and of the object that it becomes
	idle           *time.Timer
	to             *io.PipeWriter
	from           *io.PipeReader
	stored         chan struct{} // closed when err has the outcome
	err            error

	next  uint64               // number of the next piece to store
	size  protocol.Bytes       // size of the pieces before next
	early map[uint64]*nats.Msg // pieces that arrived before their predecessors
}

func newReceiver(u *Uploads, tenant, digest string) *receiver {
	r := &receiver{uploads: u, tenant: tenant, digest: digest, id: nuid.Next(), stored: make(chan struct{}),
		early: map[uint64]*nats.Msg{}}
	r.from, r.to = io.Pipe()
	r.idle = time.AfterFunc(uploadFirst, func() {
		r.to.CloseWithError(protocol.Errorf(protocol.DeadlineExceeded, "", "no piece of the upload has arrived for too long"))
	})
	return r
}

// store stores the content. It returns when the content is complete, storing fails, or ctx ends.
func (r *receiver) store(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { r.to.CloseWithError(ctx.Err()) })
	defer stop()
	content := io.Reader(&verified{r: r.from, sum: sha256.New(), digest: r.digest})
	var room UploadRoom
	if r.uploads.limits.Room != nil {
		room = r.uploads.limits.Room(r.tenant, r.digest, r.id)
		content = &metered{ctx: ctx, r: content, room: room}
	}
	r.err = r.uploads.blobs.putBlobAs(ctx, r.tenant, r.digest, r.id, content)
	if room != nil {
		room.Leave(context.WithoutCancel(ctx))
	}
	if r.err != nil && ctx.Err() != nil {
		r.err = protocol.Errorf(protocol.Unavailable, "", "the coordinator that received the upload stops")
	}
	r.from.CloseWithError(r.err) // pieces that follow are refused
	r.idle.Stop()
	close(r.stored)
}

func (r *receiver) receive(m *nats.Msg) {
	_, _, _, piece, _ := protocol.SplitBlobSubject(m.Subject)
	select {
	case <-r.stored:
		r.answerOutcome(m)
		return
	default:
	}
	switch piece {
	case uploadEnd:
		_ = r.to.Close() // never fails
		r.answerOutcome(m)
		return
	case uploadAbort:
		r.to.CloseWithError(protocol.Errorf(protocol.Cancelled, "", "the client gave up"))
		r.answerOutcome(m)
		return
	}
	n, err := strconv.ParseUint(piece, 10, 64)
	switch {
	case err != nil || n >= r.next+2*uploadWindow:
		r.uploads.answer(m, nil, protocol.Invalid("piece",
			"piece %.20q is not among the next %d pieces, which begin with piece %d", piece,
			2*uploadWindow, r.next))
		return
	case len(m.Data) == 0:
		r.uploads.answer(m, nil, protocol.Invalid("piece", "piece %d is empty", n))
		return
	case n < r.next: // the acknowledgement was lost
		r.uploads.answer(m, &protocol.Upload{}, nil)
		return
	}
	r.early[n] = m
	for m := r.early[r.next]; m != nil; m = r.early[r.next] {
		delete(r.early, r.next)
		if r.size += protocol.Bytes(len(m.Data)); r.size > r.uploads.limits.MaxBytes {
			r.to.CloseWithError(tooMuch(r.uploads.limits.MaxBytes))
		}
		if _, err := r.to.Write(m.Data); err != nil { // storing has ended
			r.answerOutcome(m)
			for _, m := range r.early {
				r.answerOutcome(m)
			}
			clear(r.early)
			return
		}
		r.next++
		r.idle.Reset(r.uploads.limits.Idle)
		r.uploads.answer(m, &protocol.Upload{}, nil)
	}
}

// tooMuch returns the error for an upload with more bytes than the limit.
func tooMuch(most protocol.Bytes) error {
	return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge, "the upload has more than %s: "+
		"upload less, for example by excluding files, or raise coordinator.upload_max_bytes", most)
}

// answerOutcome waits until the store has finished with this upload, and answers with the outcome. An upload may
// succeed before all its pieces have arrived, because another upload of the same content was faster.
func (r *receiver) answerOutcome(m *nats.Msg) {
	<-r.stored
	r.uploads.answer(m, &protocol.Upload{Stored: r.err == nil}, r.err)
}

// verified is a reader that checks a digest. If the content does not have the digest, the last read fails.
type verified struct {
	r   io.Reader
	sum interface {
		io.Writer
		Sum([]byte) []byte
	}
	digest string
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	_, _ = v.sum.Write(p[:n]) // a hash never fails
	if errors.Is(err, io.EOF) && "sha256-"+hex.EncodeToString(v.sum.Sum(nil)) != v.digest {
		err = protocol.Invalid("digest", "the content does not have the digest %s", v.digest)
	}
	return n, err
}

// Upload sends content to the coordinators, which store it under its digest for the tenant. If the content is stored
// already, Upload does not read it. Errors: invalid_argument for content that does not have the digest;
// resource_exhausted; unavailable and deadline_exceeded, after which the caller may try again.
func (t *TenantReads) Upload(ctx context.Context, digest string, content io.Reader) error {
	begun, err := t.begin(ctx, digest)
	if err != nil || begun.Stored {
		return err
	}
	group, sending := errgroup.WithContext(ctx)
	group.SetLimit(uploadWindow)
	var failed error
	var stored atomic.Bool // true: another upload has stored the same content
	for n := uint64(0); sending.Err() == nil && !stored.Load(); n++ {
		piece := make([]byte, uploadPiece)
		size, err := io.ReadFull(content, piece)
		if size > 0 {
			number := strconv.FormatUint(n, 10)
			group.Go(func() error {
				taken, err := t.tell(sending, begun.ID, number, piece[:size])
				if err == nil && taken.Stored {
					stored.Store(true)
				}
				return err
			})
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				failed = err
			}
			break
		}
	}
	err = cmp.Or(group.Wait(), failed)
	switch {
	case err != nil:
		t.abort(begun.ID)
		return err
	case stored.Load():
		return nil
	}
	_, err = t.tell(ctx, begun.ID, uploadEnd, nil)
	return err
}

// begin asks the coordinators to receive an upload. It asks again while they receive too many other uploads. While no
// coordinator answers, it asks again only until the connection's timeout.
func (t *TenantReads) begin(ctx context.Context, digest string) (*protocol.Upload, error) {
	since := time.Now()
	giveUp, pause := since.Add(uploadTurns), backoff.New(busyPause, busyMost)
	for {
		begun, err := t.tell(ctx, digest, uploadBegin, nil)
		if err == nil && !begun.Stored && begun.ID == "" {
			return nil, undecodable("the answer to the beginning of an upload names no upload")
		}
		busy := err != nil && protocol.AsError(err).Reason == protocol.ReasonTooManyReads
		alone := protocol.CodeOf(err) == protocol.Unavailable && time.Since(since) < t.queries.timeout
		if !busy && !alone || time.Now().After(giveUp) || !pause.Wait(ctx) {
			return begun, err
		}
	}
}

// abort tells the coordinator to discard an upload. If the message is lost, the coordinator discards the upload after
// uploadIdle.
func (t *TenantReads) abort(upload string) {
	m := nats.NewMsg(protocol.BlobSubject(t.tenant, cmp.Or(t.queries.user, protocol.NoUser), upload, uploadAbort))
	if err := t.queries.nc.PublishMsg(m); err != nil {
		t.queries.log.Debug("could not abort an upload", "error", err)
	}
}

// Uploaded reports whether content with this digest is stored for the tenant, and will stay stored long enough to be
// used.
func (t *TenantReads) Uploaded(ctx context.Context, digest string) (bool, error) {
	reply, err := t.Query(ctx, protocol.EndpointUploaded, protocol.Query{Digest: digest})
	if err != nil {
		return false, err
	}
	return reply.Upload != nil && reply.Upload.Stored, nil
}

// tell sends one message of an upload and waits for its answer.
func (t *TenantReads) tell(ctx context.Context, upload, piece string, data []byte) (*protocol.Upload, error) {
	m := nats.NewMsg(protocol.BlobSubject(t.tenant, cmp.Or(t.queries.user, protocol.NoUser), upload, piece))
	m.Data = data
	answer, err := t.queries.ask(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator receives the upload")
	}
	if err != nil {
		return nil, translate(err, "upload")
	}
	reply := &protocol.Reply{}
	if err := protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply); err != nil {
		return nil, err
	}
	switch {
	case reply.Error != nil:
		return nil, reply.Error
	case reply.Upload == nil:
		return nil, undecodable("the answer to an upload is empty")
	}
	return reply.Upload, nil
}
