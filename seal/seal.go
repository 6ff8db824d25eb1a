package seal

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
)

// Purpose is what a value is sealed for. It is compared when the value is opened.
type Purpose struct {
	Tenant string `json:"tenant"`
	Use    string `json:"use"` // secret, variable or answer
	Name   string `json:"name"`
}

// Secret is the purpose of the value of a tenant's secret.
func Secret(tenant, name string) Purpose { return Purpose{tenant, "secret", name} }

// Variable is the purpose of the value of a sensitive environment variable in a spec of a tenant.
func Variable(tenant, name string) Purpose { return Purpose{tenant, "variable", name} }

// Answer is the purpose of the answer to a worker's question. The answer to another question does not open.
func Answer(q *protocol.UnsealQuery) Purpose {
	parts := []string{q.Sandbox, strconv.FormatUint(q.Generation, 10), q.Exec, q.Field}
	return Purpose{q.Tenant, "answer", strings.Join(parts, "/")}
}

// sealed is the form of a sealed value.
type sealed struct {
	Version int    `json:"v"`
	To      string `json:"to"`   // public key that opens it
	From    string `json:"from"` // public key, made for this value alone
	Box     []byte `json:"box"`  // a content
}

// content is what a sealed value has inside.
type content struct {
	Purpose Purpose `json:"purpose"`
	Value   []byte  `json:"value"`
}

// version is the version of the form of sealed values.
const version = 1

// To seals a value to a public key. Error: invalid_argument with field key if the key is not a public curve key.
func To(key string, purpose Purpose, value []byte) ([]byte, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	once, err := New()
	if err != nil {
		return nil, err
	}
	defer once.pair.Wipe()
	inside := protocol.Encode(&content{purpose, value})
	defer clear(inside)
	box, err := once.pair.Seal(inside, key)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "seal a value: %v", err)
	}
	return protocol.Encode(&sealed{Version: version, To: key, From: once.public, Box: box}), nil
}

// KeyOf returns the public key that opens a sealed value. Error: invalid_argument with reason not_sealed_for_this if
// the bytes are no sealed value.
func KeyOf(data []byte) (string, error) {
	s, err := decode(data)
	if err != nil {
		return "", err
	}
	return s.To, nil
}

func decode(data []byte) (*sealed, error) {
	s := &sealed{}
	if err := protocol.Decode(data, s); err != nil || s.Version != version || ValidateKey(s.To) != nil {
		return nil, errDamaged
	}
	return s, nil
}

var errDamaged = protocol.Errorf(protocol.InvalidArgument, protocol.ReasonNotSealedForThis, "is not a sealed value")

// ValidateKey checks that a text is a public curve key. Error: invalid_argument with field key.
func ValidateKey(key string) error {
	if nkeys.IsValidPublicCurveKey(key) {
		return nil
	}
	return protocol.Invalid("key", "must be a public curve key (xkey), X and 55 characters") // it may be a seed
}

// Key is a key that opens sealed values.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// New makes a key.
func New() (*Key, error) {
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "make a key: %v", err)
	}
	return keyOf(pair)
}

func keyOf(pair nkeys.KeyPair) (*Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read a key: %v", err)
	}
	return &Key{pair, public}, nil
}

// Public returns the public key, to which others seal values.
func (k *Key) Public() string { return k.public }

// Seed returns the text from which [ParseKeys] makes the key again. It opens everything that is sealed to the key.
func (k *Key) Seed() ([]byte, error) { return k.pair.Seed() }

// String returns the public key, so that no log line shows the seed.
func (k *Key) String() string { return k.public }

// Format writes the public key for every verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.public)) } // callers see no error of a Formatter

// Open opens a value that was sealed to the key for a purpose. Errors: invalid_argument with reason
// not_sealed_for_this; failed_precondition with reason no_fleet_key if the value is sealed to another key.
func (k *Key) Open(data []byte, purpose Purpose) ([]byte, error) { return Keys{k}.Open(data, purpose) }

// Keys are the keys of a fleet. Clients seal to the first key; every key opens.
type Keys []*Key

// ParseKeys reads keys from the seeds in a text, one in each line. Empty lines and lines that begin with # do not
// count. Error: invalid_argument with the given field; the text is never part of the error.
func ParseKeys(field string, text []byte) (Keys, error) {
	var keys Keys
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		pair, err := nkeys.FromCurveSeed(line)
		if err != nil {
			return nil, protocol.Invalid(field, "line %d is not the seed of a curve key, which begins with SX", i+1)
		}
		k, err := keyOf(pair)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, protocol.Invalid(field, "has no seed of a curve key")
	}
	return keys, nil
}

// Public returns the public key to which clients seal; empty if there are no keys.
func (ks Keys) Public() string {
	if len(ks) == 0 {
		return ""
	}
	return ks[0].public
}

// Has reports whether the keys have the one with this public key.
func (ks Keys) Has(public string) bool {
	return slices.ContainsFunc(ks, func(k *Key) bool { return k.public == public })
}

// Open opens a value that was sealed to one of the keys for a purpose. Errors: those of [Key.Open].
func (ks Keys) Open(data []byte, purpose Purpose) ([]byte, error) {
	s, err := decode(data)
	if err != nil {
		return nil, err
	}
	for _, k := range ks {
		if k.public == s.To {
			return k.open(s, purpose)
		}
	}
	return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoFleetKey,
		"is sealed to the key %s, which is missing here", s.To)
}

func (k *Key) open(s *sealed, purpose Purpose) ([]byte, error) {
	inside, err := k.pair.Open(s.Box, s.From)
	if err != nil {
		return nil, errDamaged
	}
	defer clear(inside)
	c := &content{}
	if err := protocol.Decode(inside, c); err != nil {
		return nil, errDamaged
	}
	if c.Purpose != purpose {
		return nil, protocol.Errorf(protocol.InvalidArgument, protocol.ReasonNotSealedForThis,
			"is sealed for another tenant, name or use")
	}
	return bytes.Clone(c.Value), nil
}
