package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"regexp"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// Evidence is the stored history of a sandbox, with everything that a check of its signatures needs.
type Evidence struct {
	Version int       `json:"v"`
	Tenant  string    `json:"tenant"`
	Sandbox string    `json:"sandbox"` // its id
	Taken   time.Time `json:"taken"`   // when the evidence was taken, by the store's clock

	Writers  protocol.WriterPage      `json:"writers"`
	Messages []protocol.StoredMessage `json:"messages"` // as they are stored, in the order of their records

	// Digest is the SHA-256, in hex, of the JSON form of the evidence without Digest. It reveals damage. Somebody who
	// changes the evidence can also compute a new digest: to detect this, keep the original digest elsewhere, too.
	Digest string `json:"digest"`
}

// Version is the version of the JSON form of [Evidence].
const Version = 1

// Seal sets the version and the digest.
func (e *Evidence) Seal() {
	e.Version = Version
	e.Digest = e.digest()
}

func (e *Evidence) digest() string {
	bare := *e
	bare.Digest = ""
	data, err := json.Marshal(&bare)
	if err != nil {
		return "" // a year beyond 9999 has no JSON form; the empty text never matches a digest
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Parse reads evidence from its JSON form. Errors: invalid_argument with reason undecodable, unknown_field or
// unsupported_version.
func Parse(data []byte) (*Evidence, error) {
	e := &Evidence{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(e); err != nil {
		return nil, protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUndecodable,
			"this is not evidence that `boxfleet sandbox verify --save` wrote: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUndecodable,
			"the evidence is followed by more data")
	}
	if err := checkNames(json.NewDecoder(bytes.NewReader(data)), ""); err != nil {
		return nil, err
	}
	if e.Version != Version {
		return nil, protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUnsupportedVersion,
			"the evidence has version %d; this program knows version %d", e.Version, Version)
	}
	return e, nil
}

// plainName matches the names of all fields.
var plainName = regexp.MustCompile(`^[a-z0-9_]+$`)

// checkNames reads one JSON value, and returns an error if another program could read it differently: if an object has
// a field twice, or a field whose name is not in plain lower case. Package json ignores the case of names, reads some
// letters beyond ASCII as ASCII letters, and keeps the last of several fields with the same name. Names of headers may
// have any letters.
func checkNames(d *json.Decoder, parent string) error {
	begin, err := d.Token()
	if err != nil {
		return err
	}
	if _, ok := begin.(json.Delim); !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		name := parent
		if begin == json.Delim('{') {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name, _ = token.(string) // names of fields are strings
			if seen[name] || parent != "headers" && !plainName.MatchString(name) {
				return protocol.Errorf(protocol.InvalidArgument, protocol.ReasonUndecodable,
					"the evidence has the field %.80q twice or not in lower case, so other programs may read it differently", name)
			}
			seen[name] = true
		}
		if err := checkNames(d, name); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end of the object or array
	return err
}

// Keys returns the keys with which the messages claim to be signed. It returns each key once, in the order of the
// messages.
func Keys(messages []protocol.StoredMessage) (keys []string) {
	seen := map[string]bool{}
	for i := range messages {
		s, err := protocol.ParseSignature(header(&messages[i], protocol.HeaderSignature))
		if err == nil && !seen[s.Key] {
			seen[s.Key] = true
			keys = append(keys, s.Key)
		}
	}
	return keys
}

func header(m *protocol.StoredMessage, name string) string {
	if values := m.Headers[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}
