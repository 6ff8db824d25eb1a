package zrecord

import (
	"bytes"
	"cmp"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/boxfleet/boxfleet/protocol"
)

// link counts what is sent, and takes time as a link of a rate does.
type link struct {
	bytes.Buffer
	perSecond int // bytes; 0: no time passes
	clock     time.Time
}

func (l *link) Write(p []byte) (int, error) {
	if l.perSecond > 0 {
		l.clock = l.clock.Add(time.Duration(len(p)) * time.Second / time.Duration(l.perSecond))
	}
	return l.Buffer.Write(p)
}

// travel sends content over a link in pieces, and returns what arrives.
func travel(t testing.TB, l *link, mode protocol.FileCompression, content []byte, piece int) []byte {
	t.Helper()
	w := NewWriter(l, mode)
	w.now = func() time.Time { return l.clock }
	for rest := content; len(rest) > 0; rest = rest[min(len(rest), piece):] {
		if _, err := w.Write(rest[:min(len(rest), piece)]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(l.Bytes()))
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(p) // never fails
	return p
}

func text(n int) []byte { return []byte(strings.Repeat("func main() { return }\n", n/23+1)[:n]) }

func TestWhatIsSentArrives(t *testing.T) {
	for _, mode := range []protocol.FileCompression{protocol.CompressAuto, protocol.CompressAlways} {
		for _, size := range []int{0, 1, Block - 1, Block, Block + 1, 3*Block + 7} {
			for _, piece := range []int{1 << 10, Block, 10 * Block} {
				for _, content := range [][]byte{random(size), text(size)} {
					if got := travel(t, &link{perSecond: 1 << 20}, mode, content, piece); !bytes.Equal(got, content) {
						t.Errorf("%s: of %d bytes in pieces of %d, %d others arrive", mode, size, piece, len(got))
					}
				}
			}
		}
	}
}

func TestOnlySlowLinksGetCompressedRecords(t *testing.T) {
	content := text(32 << 20)
	for perSecond, compressed := range map[int]bool{10 << 20: true, 30 << 20: true, 60 << 20: false, 400 << 20: false} {
		l := &link{perSecond: perSecond}
		travel(t, l, protocol.CompressAuto, content, Block)
		if got := l.Len() < len(content)/2; got != compressed {
			t.Errorf("a link of %d MiB/s carries %d bytes of %d", perSecond>>20, l.Len(), len(content))
		}
	}
	l := &link{}
	if travel(t, l, protocol.CompressAlways, content, Block); l.Len() > len(content)/10 {
		t.Errorf("with always, %d bytes of %d are carried", l.Len(), len(content))
	}
	noise := random(8 << 20)
	l = &link{}
	if travel(t, l, protocol.CompressAlways, noise, Block); l.Len() > len(noise)+len(noise)/1000 {
		t.Errorf("%d bytes of noise become %d", len(noise), l.Len())
	}
}

// A record must not expand to more than a block, whatever the other end sends.
func TestABombIsRefused(t *testing.T) {
	small, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	for name, body := range map[string][]byte{
		"256 MiB of zeros":       bomb(t),
		"also in a small window": bomb(t, zstd.WithWindowSize(Block)),
		"one byte more":          small.EncodeAll(make([]byte, Block+1), nil),
		"two frames":             bytes.Repeat(small.EncodeAll(make([]byte, Block), nil), 2),
		"no frame":               []byte("not zstd"),
		"a frame that is cut":    small.EncodeAll(random(1000), nil)[:500],
		"a window of 128 MiB":    {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0x01, 0x00, 0x00},
		"a content size of 1EB":  {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01, 0x00, 0x00},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := NewReader(bytes.NewReader(protocol.AppendFileRecord(nil, protocol.FileRecordZstd, body)))
		n, err := io.Copy(io.Discard, r)
		r.Close()
		runtime.ReadMemStats(&after)
		if e := protocol.AsError(err); err == nil || e.Reason != protocol.ReasonUndecodable || n > 0 {
			t.Errorf("%s: got %d bytes, %v", name, n, err)
		}
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 8<<20 {
			t.Errorf("%s: %d MiB were allocated", name, taken>>20)
		}
	}
}

// bomb returns a small frame that expands to 256 MiB.
func bomb(t *testing.T, opts ...zstd.EOption) []byte {
	t.Helper()
	var frame bytes.Buffer
	enc, err := zstd.NewWriter(&frame, opts...)
	if err == nil {
		_, err = io.CopyN(enc, zeros{}, 256<<20)
	}
	if err == nil {
		err = enc.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return frame.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func FuzzReader(f *testing.F) {
	f.Add([]byte{'z', 0, 0, 0, 1, 0})
	l := &link{}
	travel(f, l, protocol.CompressAlways, text(1000), 100)
	f.Add(l.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		defer r.Close()
		if n, _ := io.Copy(io.Discard, r); n > int64(len(data))*Block {
			t.Errorf("%d bytes become %d", len(data), n)
		}
	})
}

func BenchmarkCompress(b *testing.B) {
	content := text(16 << 20)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		w := NewWriter(io.Discard, protocol.CompressAlways)
		if _, err := w.Write(content); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSlowLink sends 16 MiB of text that compresses to a tenth, or noise, over a link of 10 MiB/s.
func BenchmarkSlowLink(b *testing.B) {
	words := make([]byte, 0, 16<<20)
	for i := uint32(0); len(words) < 16<<20; i++ {
		words = append(words, strconv.Itoa(int(i*2654435761%5000))+" words of a text\n"...)
	}
	for name, content := range map[string][]byte{"text": words, "noise": random(16 << 20)} {
		for _, mode := range []protocol.FileCompression{protocol.CompressNever, protocol.CompressAuto,
			protocol.CompressAlways} {
			b.Run(name+"/"+cmp.Or(string(mode), "never"), func(b *testing.B) {
				b.SetBytes(int64(len(content)))
				for b.Loop() {
					l := &slow{}
					if mode == protocol.CompressNever {
						_, _ = l.Write(content) // returns no error
						continue
					}
					w := NewWriter(l, mode)
					if _, err := w.Write(content); err != nil {
						b.Fatal(err)
					}
					if err := w.Flush(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// slow takes 10 MiB in a second.
type slow struct{}

func (slow) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(len(p)) * time.Second / (10 << 20))
	return len(p), nil
}
