package jetstream

import (
	"crypto/ed25519"
	"os"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// signer signs with the key that the connection proves to the server. The NATS client's own callback reads the
// credentials file for each signature, which takes longer than the signing.
type signer struct {
	key    ed25519.PrivateKey
	public string // user key of NATS

	// host is the Docker host of a worker's credentials. It is empty for other roles, and for credentials that
	// `boxfleet auth` did not make.
	host string
}

// signerOf reads the key of a credentials file.
func signerOf(file string) (*signer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	defer clear(content)
	pair, err := nkeys.ParseDecoratedUserNKey(content)
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	defer clear(seed)
	_, raw, err := nkeys.DecodeSeed(seed)
	if err != nil {
		return nil, err
	}
	defer clear(raw)
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	id, _ := rights.FromCredentials(content)
	return &signer{ed25519.NewKeyFromSeed(raw), public, id.Host}, nil
}

// proves reports whether the signer made a signature.
func (s *signer) proves(text, signature []byte) bool {
	return ed25519.Verify(s.key.Public().(ed25519.PublicKey), text, signature)
}

// signNotification signs a notification for a worker. The signature names no previous message.
func (s *signer) signNotification(deployment, worker, tenant, sandbox string, hash protocol.Hash) *protocol.Signature {
	signature := &protocol.Signature{Key: s.public}
	copy(signature.Sum[:], ed25519.Sign(s.key, protocol.NotifiedText(deployment, worker, tenant, sandbox, hash)))
	return signature
}

// sign signs a message of a history.
func (s *signer) sign(deployment, tenant, sandbox string, previous, hash protocol.Hash) *protocol.Signature {
	signature := &protocol.Signature{Key: s.public, Previous: previous}
	copy(signature.Sum[:], ed25519.Sign(s.key, protocol.SignedText(deployment, tenant, sandbox, previous, hash)))
	return signature
}
