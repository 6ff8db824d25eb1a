package control

import (
	"bytes"
	"fmt"
	"io"
)

// SecretsGroup is the group of the directory for files of secrets. Only the supervisor is ever in this group: it
// refuses users in groups from its group base upwards, and starts as many execs only after years.
const SecretsGroup = 2_000_000_000

// SecretsSize is the size of the file system in memory for files of secrets, in bytes. The files of the container's
// spec need at most a quarter.
const SecretsSize = 16 << 20

// Secret is a value for the commands in a container. Exactly one of Env and File is set.
type Secret struct {
	Env   string `json:"env,omitempty"`  // name of the environment variable
	File  string `json:"file,omitempty"` // path of the file, below its directory
	Mask  bool   `json:"mask,omitempty"` // replace the value in output by as many asterisks
	Value Value  `json:"value"`
}

// Value is the value of a secret. Formatted text shows *** instead, and JSON an empty object. It is a struct because
// loggers write slices of bytes as they are.
type Value struct{ bytes []byte }

// NewValue returns a value that shares the memory of p.
func NewValue(p []byte) Value { return Value{p} }

// Bytes returns the value itself.
func (v Value) Bytes() []byte { return v.bytes }

// Format implements [fmt.Formatter].
func (Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "***") } // a Formatter cannot return an error

// MarshalBinary returns the value itself, for a frame to the supervisor.
func (v Value) MarshalBinary() ([]byte, error) { return v.bytes, nil }

// UnmarshalBinary takes a copy of p.
func (v *Value) UnmarshalBinary(p []byte) error {
	v.bytes = bytes.Clone(p)
	return nil
}

// Wipe overwrites the values with zeros. Copies that encoders and the kernel made stay in memory for a while.
func Wipe(secrets []Secret) {
	for _, s := range secrets {
		clear(s.Value.bytes)
	}
}
