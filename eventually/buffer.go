package eventually

import (
	"bytes"
	"sync"
)

// Buffer collects what goroutines write, for example a log. A test can read it at any time. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(data)
}

// Bytes returns a copy of what was written so far.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.data.Bytes())
}

// String returns what was written so far.
func (b *Buffer) String() string { return string(b.Bytes()) }
