package output

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// hashing computes the SHA-256 of the bytes of a stream that the log has acknowledged. The worker hashes the bytes that
// it sent, because the files are untrusted. Bytes that an earlier worker sent are read from the file. If those bytes
// were freed on disk, the hash continues from the state that the earlier worker saved.
type hashing struct {
	sum     hash.Hash // nil: no byte is hashed yet
	hashed  int64     // number of bytes at the start of the stream that sum covers
	unknown bool      // bytes were freed or changed before they were hashed, so the hash can no longer be computed
}

// savedHash is the state of a hash on disk, for the next worker.
type savedHash struct {
	Hashed int64  `json:"hashed"`
	State  []byte `json:"state"`
}

func (h *hashing) start() {
	if h.sum == nil {
		h.sum = sha256.New()
	}
}

// add continues the hash with bytes at an offset of the stream. It skips bytes that are already hashed. It ignores
// bytes after a gap; hashUpTo reads those from the file.
func (h *hashing) add(at int64, data []byte) {
	end := at + int64(len(data))
	if h.unknown || at > h.hashed || end <= h.hashed {
		return
	}
	h.start()
	h.sum.Write(data[h.hashed-at:]) // never fails
	h.hashed = end
}

// hashUpTo reads from the file the bytes of the stream that are not hashed yet, up to an offset, and hashes them.
// Error: the error of ctx.
func (s *stream) hashUpTo(ctx context.Context, f *os.File, to int64) error {
	if s.hashed >= to {
		return nil
	}
	s.unknown = s.unknown || s.hashed < s.freed
	buffer := make([]byte, min(to-s.hashed, jetstream.ChunkSize))
	for s.hashed < to && !s.unknown {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := f.ReadAt(buffer[:min(to-s.hashed, int64(len(buffer)))], s.hashed)
		s.add(s.hashed, buffer[:n])
		s.unknown = n == 0 || err != nil && err != io.EOF
	}
	return nil
}

// save returns the state of the hash for the next worker.
func (h *hashing) save() savedHash {
	if h.sum == nil || h.unknown {
		return savedHash{}
	}
	state, err := h.sum.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return savedHash{}
	}
	return savedHash{h.hashed, state}
}

// restore continues from a saved state.
func (h *hashing) restore(saved savedHash) {
	sum := sha256.New()
	if saved.Hashed > 0 && sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(saved.State) == nil {
		h.sum, h.hashed = sum, saved.Hashed
	}
}

// saveHashes saves the states of both hashes. Call it before output is freed on disk, because the next worker cannot
// read freed output. If saveHashes fails, the next worker does not know the hashes.
func (p *Exec) saveHashes() {
	saved := [2]savedHash{p.streams[0].save(), p.streams[1].save()}
	data, err := json.Marshal(saved)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.cfg.HashFile), 0o700)
	}
	temporary := p.cfg.HashFile + ".tmp" // ids of execs contain no dot
	if err == nil {
		err = os.WriteFile(temporary, data, 0o600)
	}
	if err == nil {
		err = os.Rename(temporary, p.cfg.HashFile)
	}
	if err != nil {
		p.cfg.Logger.Info("could not save the hash of an exec's output; if the worker restarts, the exec's end has no hash",
			"exec", p.name, "error", err)
	}
	p.hashSaved = true
}

// restoreHashes continues from the states that an earlier worker saved, if it saved any.
func (p *Exec) restoreHashes() {
	var saved [2]savedHash
	data, err := os.ReadFile(p.cfg.HashFile)
	if err != nil || json.Unmarshal(data, &saved) != nil {
		return // the earlier worker freed no output
	}
	p.hashSaved = true
	for i := range saved {
		p.streams[i].restore(saved[i])
	}
}

// removeHashes removes the saved states. Call it once the log has the exec's end.
func (p *Exec) removeHashes() {
	if p.hashSaved {
		_ = os.Remove(p.cfg.HashFile) // on failure, the file is removed later with the directory of the sandbox
	}
}

// Hashes returns the SHA-256 of the published bytes of each stream, in hex. A hash is empty if it is not known. Call
// Hashes after PublishAll. Error: the error of ctx.
func (p *Exec) Hashes(ctx context.Context) (stdout, stderr string, err error) {
	var hashes [2]string
	for i := range p.streams {
		if hashes[i], err = p.hashOf(ctx, i); err != nil {
			return "", "", err
		}
	}
	return hashes[0], hashes[1], nil
}

func (p *Exec) hashOf(ctx context.Context, i int) (string, error) {
	s := &p.streams[i]
	if s.hashed != s.published && !s.unknown {
		if err := p.hashRest(ctx, i); err != nil {
			return "", err
		}
	}
	if s.published == 0 || s.unknown {
		return "", nil
	}
	return hex.EncodeToString(s.sum.Sum(nil)), nil
}

// hashRest makes the hash of a stream cover the published bytes.
func (p *Exec) hashRest(ctx context.Context, i int) error {
	s := &p.streams[i]
	s.unknown = true
	run, done, err := p.cfg.Sandbox.RunDir()
	if err != nil {
		return nil // the directory was removed
	}
	defer done()
	f, err := supervise.OpenOutput(run, p.name, names[i])
	if err != nil {
		return nil // the file is missing, or is not a regular file
	}
	defer f.Close()
	s.unknown = false
	if s.hashed > s.published { // the log lost bytes that it had acknowledged
		s.hashing = hashing{}
	}
	return s.hashUpTo(ctx, f, s.published)
}
