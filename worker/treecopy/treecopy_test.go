package treecopy

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/treetar"
)

func TestAnUploadIsRefusedForItsTreeOrItsDigestButNotForAnErrorOfTheStore(t *testing.T) {
	t.Parallel()
	var upload bytes.Buffer
	w := tar.NewWriter(&upload)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	upload.Write(make([]byte, 4096)) // padding, which the digest covers
	sum := sha256.Sum256(upload.Bytes())
	digest := "sha256-" + hex.EncodeToString(sum[:])
	target := treetar.Target{Root: "work", Missing: []string{"work"}, UID: -1, MaxEntries: 10, MaxBytes: 10}
	broken := iotest.ErrReader(errors.New("no answer"))
	cut := io.MultiReader(bytes.NewReader(upload.Bytes()[:700]), broken)
	for what, c := range map[string]struct {
		upload io.Reader
		digest string
		code   protocol.Code
		copied int
	}{
		"as uploaded":           {bytes.NewReader(upload.Bytes()), digest, "", upload.Len()},
		"another digest":        {bytes.NewReader(upload.Bytes()), "sha256-0", protocol.InvalidArgument, upload.Len()},
		"not a tree":            {bytes.NewReader(bytes.Repeat([]byte("x"), 1024)), digest, protocol.InvalidArgument, 512},
		"the store fails":       {broken, digest, protocol.Unavailable, 0},
		"the store fails later": {cut, digest, protocol.Unavailable, 700},
	} {
		var copied bytes.Buffer
		err := rewrite(c.upload, &copied, io.Discard, target, c.digest)
		if protocol.CodeOf(err) != c.code || copied.Len() != c.copied {
			t.Errorf("%s: error %v, want code %q; %d bytes counted, want %d", what, err, c.code, copied.Len(), c.copied)
		}
	}
}
