package auth

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
)

// newKey makes a key and stores its seed. It returns the public key.
func (a *Authority) newKey(prefix nkeys.PrefixByte) (public string, err error) {
	pair, err := nkeys.CreatePair(prefix)
	if err != nil {
		return "", internal("make a key", err)
	}
	defer pair.Wipe()
	if public, err = pair.PublicKey(); err != nil {
		return "", internal("make a key", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return "", internal("make a key", err)
	}
	if err := os.MkdirAll(filepath.Join(a.dir, seedsDir), 0o700); err != nil {
		return "", internal("store a key", err)
	}
	return public, writeFile(a.seedFile(public), seed)
}

func (a *Authority) seedFile(public string) string {
	return filepath.Join(a.dir, seedsDir, public+".nk")
}

// key returns a stored key. The caller must wipe the key.
func (a *Authority) key(public string) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(a.seedFile(public))
	if err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "read the seed of key %s: %v: restore the file from a "+
			"backup; boxfleet auth rotate replaces the key of a role", public, err)
	}
	pair, err := nkeys.FromSeed(seed)
	clear(seed)
	if err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "%s holds no seed: %v", a.seedFile(public), err)
	}
	if is, err := pair.PublicKey(); err != nil || is != public {
		pair.Wipe()
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "%s holds the seed of another key", a.seedFile(public))
	}
	return pair, nil
}

// writeFile replaces a file in one step: after a crash the file has either the old or the new content. Only the owner
// of the file can read it.
func writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // the file gets mode 0600
	if err != nil {
		return internal("write "+name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // if it stays, only the owner can read it; the first error says why
			err = internal("write "+name, err)
		}
	}()
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err == nil {
		err = syncDir(filepath.Dir(name))
	}
	return err
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return err
}

// checkPrivate refuses a directory that other users have access to, because the directory holds seeds.
func checkPrivate(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return protocol.Invalid("dir", "cannot read %s: %v", dir, err)
	}
	if !info.IsDir() {
		return protocol.Invalid("dir", "%s is not a directory", dir)
	}
	if info.Mode().Perm()&fs.FileMode(0o077) != 0 {
		return protocol.Errorf(protocol.FailedPrecondition, "",
			"%s holds keys, and users other than its owner have access to it: run chmod 700 %s", dir, dir)
	}
	return nil
}

func internal(doing string, err error) error {
	return protocol.Errorf(protocol.Internal, "", "%s: %v", doing, err)
}
