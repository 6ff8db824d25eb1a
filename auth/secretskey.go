package auth

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seal"
)

// secretsKeyFile has the seeds of the fleet's keys for secrets, one in each line. Clients seal to the first key.
const secretsKeyFile = "secrets.key"

// SecretsKey returns the path of the file with the fleet's keys for secrets. It makes the file with a new key if it
// does not exist.
func (a *Authority) SecretsKey() (path string, err error) {
	unlock, err := a.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	path = filepath.Join(a.dir, secretsKeyFile)
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, a.addSecretsKey()
	}
	if err != nil {
		return "", internal("read "+path, err)
	}
	return path, nil
}

// RotateSecretsKey puts a new key before the others in the file that SecretsKey returns. The other keys still open the
// values that were sealed to them. It returns the path of the file.
func (a *Authority) RotateSecretsKey() (path string, err error) {
	unlock, err := a.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	return filepath.Join(a.dir, secretsKeyFile), a.addSecretsKey()
}

// addSecretsKey adds a new key. The caller holds the directory's lock.
func (a *Authority) addSecretsKey() error {
	path := filepath.Join(a.dir, secretsKeyFile)
	others, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return internal("read "+path, err)
	}
	defer clear(others)
	if len(bytes.TrimSpace(others)) > 0 {
		if _, err := seal.ParseKeys("secrets_key", others); err != nil {
			return protocol.Errorf(protocol.FailedPrecondition, "", "%s is damaged: restore it from a backup: %v", path, err)
		}
	}
	key, err := seal.New()
	if err != nil {
		return err
	}
	seed, err := key.Seed()
	if err != nil {
		return internal("make a key", err)
	}
	defer clear(seed)
	return writeFile(path, append(append(bytes.Clone(seed), '\n'), others...))
}
