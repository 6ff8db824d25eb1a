package protocol

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// Each coordinator and worker signs every message that it appends to a history. It uses the key with which it
// authenticates itself to the NATS server. The messages of a history form a chain: each signature names the hash of the
// last message before it that readers accept.
//
//	accepted ◄── assigned ◄── preparing ◄── ready
//	   │            │             ✗ forged: no reader accepts it, and no signature names it

// Hash is the SHA-256 of the payload of a message. The first message of a history names the zero value as its previous
// message.
type Hash [sha256.Size]byte

// PayloadHash returns the hash of the payload of a message of the event log.
func PayloadHash(data []byte) Hash { return sha256.Sum256(data) }

// Signature is the signature of a message of the event log, decoded from the header [HeaderSignature].
type Signature struct {
	Key      string                      // public user key of NATS, U and 55 characters
	Previous Hash                        // hash of the last accepted message before this one
	Sum      [ed25519.SignatureSize]byte // ed25519 signature of [SignedText]
}

// signatureVersion is the version of the header and of the signed text.
const signatureVersion = "1"

// signedDomain begins every signed text. With the same key, a client also signs the random bytes that the server sends
// when the client connects. Because of the domain, neither of these signatures can be used in place of the other.
const signedDomain = "boxfleet.v1.append"

// notifiedDomain begins the text that a coordinator signs for a notification, so that the signature fits no message of
// the event log.
const notifiedDomain = "boxfleet.v1.work"

// SignedText returns the text that a writer signs. hash is the hash of the message's payload. In the text, each part
// comes after its length, which takes 4 bytes, the most significant byte first.
func SignedText(deployment, tenant, sandbox string, previous, hash Hash) []byte {
	return textOf(signedDomain, deployment, tenant, sandbox, string(previous[:]), string(hash[:]))
}

// NotifiedText returns the text that a coordinator signs to notify a worker of a batch. hash is the hash of the
// notification's payload. The text has the form of [SignedText].
func NotifiedText(deployment, worker, tenant, sandbox string, hash Hash) []byte {
	return textOf(notifiedDomain, deployment, worker, tenant, sandbox, string(hash[:]))
}

func textOf(parts ...string) []byte {
	size := 0
	for _, p := range parts {
		size += 4 + len(p)
	}
	text := make([]byte, 0, size)
	for _, p := range parts {
		text = binary.BigEndian.AppendUint32(text, uint32(len(p)))
		text = append(text, p...)
	}
	return text
}

// String returns the text of the header: version, key, previous hash and signature, separated by dots.
func (s *Signature) String() string {
	text := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{signatureVersion, s.Key, text(s.Previous[:]), text(s.Sum[:])}, ".")
}

// ParseSignature parses a header. Errors: invalid_argument with field signature.
func ParseSignature(text string) (*Signature, error) {
	malformed := func(why string) error {
		return Invalid("signature", "is %s: want 1.KEY.HASH.SIGNATURE", why)
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 || parts[0] != signatureVersion {
		return nil, malformed("of unknown form")
	}
	s := &Signature{Key: parts[1]}
	if _, err := publicKey(s.Key); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		text string
		to   []byte
		why  string
	}{{parts[2], s.Previous[:], "without a valid hash"}, {parts[3], s.Sum[:], "without a valid signature"}} {
		data, err := base64.RawURLEncoding.Strict().DecodeString(part.text)
		if err != nil || len(data) != len(part.to) {
			return nil, malformed(part.why)
		}
		copy(part.to, data)
	}
	return s, nil
}

// Signs reports whether the signature is a valid signature of the text by its key.
func (s *Signature) Signs(text []byte) bool {
	key, err := publicKey(s.Key)
	return err == nil && ed25519.Verify(key, text, s.Sum[:])
}

// ValidateKey checks that a text is a public user key of NATS. Error: invalid_argument with field key.
func ValidateKey(text string) error {
	_, err := publicKey(text)
	return err
}

// userKeyPrefix is the first byte of a decoded user key of NATS. It makes the text begin with U.
const userKeyPrefix = 20 << 3

// publicKey decodes a user key of NATS: a prefix, the ed25519 key, and a checksum in base32. Error: invalid_argument
// with field key.
func publicKey(text string) (ed25519.PublicKey, error) {
	raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(text)
	if err != nil || len(raw) != 1+ed25519.PublicKeySize+2 || raw[0] != userKeyPrefix ||
		binary.LittleEndian.Uint16(raw[len(raw)-2:]) != checksum(raw[:len(raw)-2]) {
		return nil, Invalid("key", "must be a public user key of NATS, U and 55 characters, got %.80q", text)
	}
	return ed25519.PublicKey(raw[1 : 1+ed25519.PublicKeySize]), nil
}

// checksum is the CRC-16 at the end of NATS keys: polynomial 0x1021, initial value 0.
func checksum(data []byte) (crc uint16) {
	for _, b := range data {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// Writer is the coordinator or worker that a key belongs to. The NATS server proved this when the key was registered.
type Writer struct {
	Role Owner  `json:"role"` // [OwnerCoordinator] or [OwnerWorker]
	Name string `json:"name"`
	Host string `json:"host,omitempty"` // id of a worker's Docker host
}

// MayAppend returns an error unless a writer may append a batch to a history. A coordinator may write only the events
// of coordinators. A worker may write only the events of workers, and only while the sandbox is assigned to this
// worker's host. The host counts, not the worker's name, because a host keeps its sandboxes when its worker gets
// another name. The batch must name its writer. state is the state before the batch, or nil if the history before the
// batch has been purged; then the host is not checked. Error: permission_denied with reason not_proven.
func MayAppend(state *State, b *Batch, w Writer) error {
	if b.Writer != w.Name {
		return notProven("it names the writer %.80q, but %s %s signed it", b.Writer, w.Role, w.Name)
	}
	if w.Role != OwnerCoordinator && w.Role != OwnerWorker {
		return notProven("%s has the unknown role %.80q", w.Name, w.Role)
	}
	for i := range b.Events {
		// Events of unknown kinds are written by newer versions, and change nothing in this version.
		t, known := transitionOf[b.Events[i].Kind]
		if known && t.Owner != OwnerEither && t.Owner != w.Role {
			return notProven("%s is written by a %s, not by %s %s", t.Kind, t.Owner, w.Role, w.Name)
		}
	}
	if state != nil && w.Role == OwnerWorker && (w.Host == "" || state.Sandbox.HostID != w.Host) {
		return notProven("worker %s of host %s wrote it, but the sandbox is assigned to host %q",
			w.Name, w.Host, state.Sandbox.HostID)
	}
	return nil
}

func notProven(format string, args ...any) error {
	return Errorf(PermissionDenied, ReasonNotProven, format, args...)
}
