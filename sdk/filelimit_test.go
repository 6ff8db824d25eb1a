package sdk

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestBytesBeyondALimitAreAnError(t *testing.T) {
	for _, c := range []struct {
		size int
		most Bytes
	}{{0, 1}, {9, 10}, {10, 10}, {11, 10}, {1000, 10}, {10, math.MaxInt64}} {
		content, fits := strings.Repeat("x", c.size), Bytes(c.size) <= c.most
		check := func(what, got string, err error) {
			t.Helper()
			if fits && (err != nil || got != content) ||
				!fits && (protocol.AsError(err).Reason != protocol.ReasonTooLarge || Bytes(len(got)) > c.most) {
				t.Errorf("%s %d bytes with a limit of %d: got %d bytes, %v", what, c.size, c.most, len(got), err)
			}
		}
		for _, r := range []io.Reader{strings.NewReader(content), iotest.OneByteReader(strings.NewReader(content))} {
			got, err := io.ReadAll(&boundedReader{r: r, path: "/f", most: c.most})
			check("read", string(got), err)
		}
		var got bytes.Buffer
		limited := &boundedWriter{w: &got, path: "/f", most: c.most}
		_, err := io.Copy(limited, iotest.OneByteReader(strings.NewReader(content)))
		check("written", got.String(), err)
	}
	err := settingsOf([]PackOption{WithMaxBytes(-1)}, PackOption.forPack).checkMaxBytes()
	if protocol.AsError(err).Field != "max_bytes" {
		t.Errorf("a negative limit: %v", err)
	}
}
