package output

import (
	"os"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

// hashes checks that the hash of the published stdout is known and correct, and that stderr, which is empty, has no
// hash.
func (p *publishing) hashes(pub *Exec) {
	p.t.Helper()
	stdout, stderr, err := pub.Hashes(p.t.Context())
	if want := protocol.OutputHash(text(0, p.size)); err != nil || stdout != want || stderr != "" {
		p.t.Errorf("after %d bytes the hashes are %q and %q, error %v; want %q and none", p.size, stdout, stderr, err, want)
	}
}

func TestTheHashCoversAllPublishedOutput(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	for _, size := range []int64{1, 300 << 10, 1 << 20} {
		p.print(size)
		p.publish(pub)
		p.hashes(pub)
	}
	pub.unsure = true // pub publishes everything again
	p.print(5)
	p.publish(pub)
	p.hashes(pub)
}

// Freed output reads as zeros, so the next worker cannot hash it again.
func TestANewWorkerContinuesTheHashOfFreedOutput(t *testing.T) {
	t.Parallel()
	p, pub := newFreed(t)
	p.print(1 << 20)
	p.publish(pub) // published after the state of the hash was saved
	for _, more := range []int64{0, 5<<20 + 77, 0} {
		p.print(more)
		next := p.publisher(true)
		p.publish(next)
		p.hashes(next)
		p.awaitFreed(next)
		p.hashes(next)
	}
	last := p.publisher(true)
	p.publish(last)
	p.hashes(last)
	last.Forget(nil, func() {})
	if _, err := os.Stat(last.cfg.HashFile); !os.IsNotExist(err) {
		t.Errorf("after the exec is forgotten, its saved hashes still exist: %v", err)
	}
}

// A worker that takes over an exec frees output that the earlier worker published. It must hash this output first.
func TestANewWorkerHashesOutputBeforeItFreesIt(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	pub.syncAfter = 1 << 62 // pub frees nothing
	p.print(5<<20 + 1234)
	p.publish(pub)
	p.print(10)
	p.publish(pub) // the chunk says that the log has all output, so the next worker has nothing to publish
	next := p.publisher(true)
	p.awaitFreed(next)
	p.hashes(next)
}

func TestAHashIsUnknownIfFreedOutputWasNotHashed(t *testing.T) {
	t.Parallel()
	p, pub := newFreed(t)
	if err := os.Remove(pub.cfg.HashFile); err != nil {
		t.Fatal(err)
	}
	next := p.publisher(true)
	p.print(10)
	p.publish(next)
	if stdout, _, err := next.Hashes(t.Context()); err != nil || stdout != "" {
		t.Errorf("without the state that was saved, the hash is %q, error %v; want none", stdout, err)
	}
}

// The file may change after its bytes were published.
func TestTheHashIsOfTheBytesThatWereSent(t *testing.T) {
	t.Parallel()
	p := newPublishing(t)
	pub := p.publisher(false)
	p.print(1 << 20)
	p.publish(pub)
	if _, err := p.file.WriteAt([]byte("changed"), 0); err != nil {
		t.Fatal(err)
	}
	p.hashes(pub)
}
