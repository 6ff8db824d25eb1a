package integration

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/sdk"
)

// byHand is a client of one sandbox that uses only NATS and docs/wire.md.
type byHand struct {
	*nats.Conn
	t                             *testing.T
	tenant, user, sandbox, worker string
}

// newByHand connects as the fleet's user.
func newByHand(t *testing.T, f *fleet.Fleet, s *sdk.Sandbox) *byHand {
	t.Helper()
	info := s.Info()
	h := &byHand{t: t, tenant: info.Tenant, user: info.Actor, sandbox: s.ID(), worker: info.Worker}
	var options []nats.Option
	if creds := f.Options(sdk.Options{}).Creds; creds != "" {
		options = append(options, nats.UserCredentials(creds), nats.CustomInboxPrefix("_INBOX."+h.tenant+"."+h.user))
	}
	var err error
	if h.Conn, err = nats.Connect(f.URL(), options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// ask sends a request in JSON, with headers by name and value, and decodes the first answer.
func (h *byHand) ask(subject, content string, answer any, headers ...string) {
	h.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(content)
	m.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	reply, err := h.RequestMsg(m, 30*time.Second)
	if err == nil {
		err = json.Unmarshal(reply.Data, answer)
	}
	if err != nil {
		h.t.Fatalf("%s: %v", subject, err)
	}
}

// subject returns the subject of a request or a read, with the user if there is one.
func (h *byHand) subject(kind, rest string) string {
	if h.user == "" {
		return "boxfleet.v1." + kind + "." + h.tenant + "." + rest
	}
	return "boxfleet.v1." + kind + "." + h.tenant + "." + h.user + "." + rest
}

// The types of frames.
const (
	frameData = iota + 1
	frameWindow
	frameEOF
	frameReset
	framePing
	framePong
	frameAgain
)

const handWindow = 64 << 10 // bytes that a byHand lets the worker send

// handStream is the client's end of a stream.
type handStream struct {
	*byHand
	frames             *nats.Subscription
	up                 string
	got                []byte
	ended              bool   // the worker has ended its direction
	sent, acked, limit uint64 // bytes, and one for the end
	frame              uint64 // data bytes of the largest frame that the worker takes
}

// opened is the answer to an opening.
type opened struct {
	Error  map[string]string
	Result []byte
	Stream bool
	Window uint64
	Frame  uint64
}

// open opens a stream. It returns nil if the answer is complete without a stream.
func (h *byHand) open(kind string, request map[string]any) (*handStream, opened) {
	h.t.Helper()
	id := rand.Text()
	rest := "." + h.worker + "." + h.tenant + "." + cmp.Or(h.user, "@") + "." + h.sandbox
	frames, err := h.SubscribeSync("boxfleet.v1.stream.down" + rest + "." + id)
	if err != nil {
		h.t.Fatal(err)
	}
	packed, err := msgpack.Marshal(request)
	if err != nil {
		h.t.Fatal(err)
	}
	content, err := json.Marshal(map[string]any{"v": 1, "id": id, "kind": kind, "timeout": "20s", "request": packed,
		"window": handWindow})
	if err != nil {
		h.t.Fatal(err)
	}
	var answer opened
	h.ask("boxfleet.v1.stream.open"+rest, string(content), &answer)
	if !answer.Stream {
		_ = frames.Unsubscribe() // fails only if the connection is closed
		return nil, answer
	}
	s := &handStream{byHand: h, frames: frames, up: "boxfleet.v1.stream.up" + rest + "." + id, limit: answer.Window,
		frame: answer.Frame}
	s.acknowledge() // the first frame tells the worker that the client has the answer
	return s, answer
}

func (s *handStream) send(kind byte, data []byte, numbers ...uint64) {
	s.t.Helper()
	frame := []byte{kind}
	for _, n := range numbers {
		frame = binary.BigEndian.AppendUint64(frame, n)
	}
	if err := s.Publish(s.up, append(frame, data...)); err != nil {
		s.t.Fatal(err)
	}
}

// received returns the two numbers with which each end tells what it has received and takes.
func (s *handStream) received() (received, limit uint64) {
	received = uint64(len(s.got))
	limit = received + handWindow
	if s.ended {
		received++
	}
	return received, limit
}

func (s *handStream) acknowledge() {
	s.t.Helper()
	received, limit := s.received()
	s.send(frameWindow, nil, received, limit)
}

// take waits for a frame of the worker, and does what the page says about it.
func (s *handStream) take() {
	s.t.Helper()
	m, err := s.frames.NextMsg(30 * time.Second)
	if err != nil {
		s.t.Fatalf("no frame came after %d bytes: %v", len(s.got), err)
	}
	kind, content := m.Data[0], m.Data[1:]
	number := func(i int) uint64 { return binary.BigEndian.Uint64(content[8*i:]) }
	received, limit := s.received()
	switch kind {
	case frameData, frameEOF:
		switch at := number(0); {
		case at > uint64(len(s.got)):
			s.send(frameAgain, nil, received, limit)
			return
		case kind == frameEOF:
			s.ended = true
		case at+uint64(len(content)-8) > uint64(len(s.got)):
			s.got = append(s.got, content[8+uint64(len(s.got))-at:]...)
		}
		s.acknowledge()
	case frameWindow, framePing, framePong, frameAgain:
		s.acked, s.limit = max(s.acked, number(0)), max(s.limit, number(1))
		if kind == framePing {
			s.send(framePong, nil, received, limit, number(2))
		}
	default:
		s.t.Fatalf("a frame of type %d: %q", kind, content)
	}
}

// write sends data within the worker's limit.
func (s *handStream) write(data []byte) {
	s.t.Helper()
	for len(data) > 0 {
		for s.sent >= s.limit {
			s.take()
		}
		n := min(uint64(len(data)), s.frame, s.limit-s.sent)
		s.send(frameData, data[:n], s.sent)
		data, s.sent = data[n:], s.sent+n
	}
}

// end ends the client's direction, and waits until both ends have acknowledged the end of the other one.
func (s *handStream) end() []byte {
	s.t.Helper()
	s.send(frameEOF, nil, s.sent)
	for s.sent++; !s.ended || s.acked < s.sent; {
		s.take()
	}
	if s.acked != s.sent {
		s.t.Errorf("the worker acknowledged %d bytes of %d", s.acked, s.sent)
	}
	return s.got
}

// fileResult is the part of an answer about files that the test reads.
type fileResult struct {
	File struct {
		Path, Type string
		Size       int64
	}
}

func (h *byHand) result(packed []byte) (r fileResult) {
	h.t.Helper()
	var all map[string]map[string]any
	if err := msgpack.Unmarshal(packed, &all); err != nil {
		h.t.Fatalf("%x: %v", packed, err)
	}
	r.File.Path, _ = all["file"]["path"].(string)
	r.File.Type, _ = all["file"]["type"].(string)
	if _, err := fmt.Sscan(fmt.Sprint(all["file"]["size"]), &r.File.Size); err != nil {
		h.t.Errorf("the answer has no size: %v", all)
	}
	return r
}

// TestStreamsAreDrivenWithPlainMessages writes and reads a file, and the stdin of an exec, without the SDK.
func TestStreamsAreDrivenWithPlainMessages(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	s := f.Create("wire")
	h := newByHand(t, f, s)
	data := make([]byte, 300_000)
	_, _ = rand.Read(data) // never fails
	f.Run(t, "a file", func(t *testing.T) {
		h.t = t
		h.carriesAFile(data)
	})
	f.Run(t, "the stdin of an exec", func(t *testing.T) {
		h.t = t
		h.feedsAnExec(f, data[:100_000])
	})
	f.Judge()
}

func (h *byHand) carriesAFile(data []byte) {
	const path = "/tmp/by/hand"
	w, answer := h.open("file", map[string]any{"write": map[string]any{"path": path, "parents": true}})
	if w == nil {
		h.t.Fatalf("the write: %+v", answer)
	}
	w.write(data)
	record := w.end()
	if len(record) < 5 || record[0] != 'a' || int(binary.BigEndian.Uint32(record[1:])) != len(record)-5 {
		h.t.Fatalf("the write is answered with %q", record)
	}
	if r := h.result(record[5:]); r.File.Size != int64(len(data)) || r.File.Type != "file" {
		h.t.Errorf("the file is %+v", r.File)
	}
	r, answer := h.open("file", map[string]any{"read": map[string]any{"path": path}})
	if r == nil {
		h.t.Fatalf("the read: %+v", answer)
	}
	if told := h.result(answer.Result); told.File.Size != int64(len(data)) || told.File.Path != path {
		h.t.Errorf("the read is answered with %+v", told.File)
	}
	if got := r.end(); !slices.Equal(got, data) {
		h.t.Errorf("%d bytes are read, or others than the %d that were written", len(got), len(data))
	}
	if none, answer := h.open("file", map[string]any{"read": map[string]any{"path": "/tmp/none"}}); none != nil ||
		answer.Error["reason"] != "path_not_found" {
		h.t.Errorf("a read of nothing: %+v", answer)
	}
	if none, answer := h.open("file", map[string]any{"stat": map[string]any{"path": path}}); none != nil ||
		answer.Error["reason"] != "unknown_field" {
		h.t.Errorf("a request with an unknown field: %+v", answer)
	}
}

func (h *byHand) feedsAnExec(f *fleet.Fleet, input []byte) {
	var stored struct{ Stream string }
	h.ask(h.subject("request", "exec."+h.sandbox), `{"v":1,"exec_id":"hand","exec":{"command":["cat"],"open_stdin":true}}`,
		&stored, "Boxfleet-Request", "hand")
	if stored.Stream == "" {
		h.t.Fatal("the request was not stored")
	}
	var s *handStream
	var answer opened
	f.Eventually(30*time.Second, "the exec takes input", func() error {
		if s, answer = h.open("stdin", map[string]any{"exec": "hand"}); s == nil {
			return fmt.Errorf("%v", answer.Error)
		}
		return nil
	})
	var state map[string]any
	if err := msgpack.Unmarshal(answer.Result, &state); err != nil || state["taken"] != nil { // 0 is omitted
		h.t.Errorf("before the first byte, the exec has taken %v, %v", state, err)
	}
	s.write(input)
	counts := s.end()
	before := uint64(0)
	for ; len(counts) >= 8; counts = counts[8:] {
		count := binary.BigEndian.Uint64(counts)
		if count < before {
			h.t.Errorf("the exec had taken %d bytes, and then %d", before, count)
		}
		before = count
	}
	if len(counts) != 0 || before != uint64(len(input)) {
		h.t.Errorf("the exec has taken %d bytes of %d, and %d bytes are left over", before, len(input), len(counts))
	}
	var page struct {
		Output struct {
			Data      []byte
			Next, End int64
			Ended     bool
		}
	}
	f.Eventually(30*time.Second, "the exec has ended and its output is there", func() error {
		h.ask(h.subject("api", "output"), `{"v":1,"sandbox":"wire","exec":"hand"}`, &page)
		if o := &page.Output; !o.Ended || o.Next != o.End {
			return fmt.Errorf("it is at %d of %d", o.Next, o.End)
		}
		return nil
	})
	if !slices.Equal(page.Output.Data, input) {
		h.t.Errorf("the output has %d bytes, or others than the %d of the input", len(page.Output.Data), len(input))
	}
}
