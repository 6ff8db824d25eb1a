package auth

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Files of an authority's directory.
const (
	stateFile    = "authority.json"
	replacedFile = "authority.replaced.json" // the authority before the last [Replace]
	lockFile     = "lock"
	seedsDir     = "seeds" // one file for each key, named after the public key
)

// stateVersion is the version of the format of stateFile.
const stateVersion = 1

// Authority is a directory with the keys of an operator. Several processes may use the directory at once, because each
// change locks it.
type Authority struct {
	dir string
	now func() time.Time
}

// state has everything that the directory holds except the seeds.
type state struct {
	Version  int          `json:"v"`
	Operator string       `json:"operator"` // public keys
	System   string       `json:"system_account"`
	Signing  []SigningKey `json:"signing_keys"`
	Issued   []Issued     `json:"issued"`

	OperatorJWT string `json:"operator_jwt"`
	SystemJWT   string `json:"system_account_jwt"`

	Accounts []account `json:"accounts"` // the account of the streams is first
}

// account is an account of the deployment.
type account struct {
	Account rights.Account `json:"account"`
	Key     string         `json:"key"` // public
	JWT     string         `json:"jwt"`
}

// SigningKey signs the credentials of one role.
type SigningKey struct {
	Role    rights.Role `json:"role"`
	Key     string      `json:"key"` // public
	Created time.Time   `json:"created"`

	// AcceptedUntil is set when the key is replaced. The first [Authority.Push] after this time makes servers refuse
	// the credentials that the key signed. Zero: the key is the role's present key.
	AcceptedUntil time.Time `json:"accepted_until,omitzero"`
}

// Replace is true if [Init] may replace an existing authority.
type Replace bool

// Init makes an authority in a directory, with a new operator, and returns it. It makes the directory if it does not
// exist. Servers that trust the new authority refuse all credentials of the replaced authority. Its keys stay in the
// directory. Errors: already_exists if the directory has an authority and replace is false; failed_precondition if
// users other than the directory's owner have access to the directory; invalid_argument with field dir.
func Init(dir string, replace Replace) (*Authority, error) {
	if dir == "" {
		return nil, protocol.Invalid("dir", "must not be empty")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, protocol.Invalid("dir", "cannot make %s: %v", dir, err)
	}
	if err := checkPrivate(dir); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, now: time.Now}
	unlock, err := a.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := a.makeRoom(bool(replace)); err != nil {
		return nil, err
	}
	s := &state{Version: stateVersion, Issued: []Issued{}}
	for _, k := range []struct {
		prefix nkeys.PrefixByte
		public *string
	}{
		{nkeys.PrefixByteOperator, &s.Operator},
		{nkeys.PrefixByteAccount, &s.System},
	} {
		if *k.public, err = a.newKey(k.prefix); err != nil {
			return nil, err
		}
	}
	for _, kind := range rights.Accounts() {
		key, err := a.newKey(nkeys.PrefixByteAccount)
		if err != nil {
			return nil, err
		}
		s.Accounts = append(s.Accounts, account{Account: kind, Key: key})
	}
	for _, role := range rights.Roles() {
		if err := a.addSigningKey(s, role); err != nil {
			return nil, err
		}
	}
	if err := a.signOperator(s); err != nil {
		return nil, err
	}
	if err := a.signAccounts(s); err != nil {
		return nil, err
	}
	if err := a.addSecretsKey(); err != nil { // keys of a replaced authority still open the secrets that are stored
		return nil, err
	}
	return a, a.store(s)
}

// makeRoom moves the file of an existing authority aside. If replace is false, it returns an error instead.
func (a *Authority) makeRoom(replace bool) error {
	file := filepath.Join(a.dir, stateFile)
	_, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return internal("look for an authority", err)
	case !replace:
		return protocol.Errorf(protocol.AlreadyExists, "",
			"%s has an authority: a replacement would make all credentials of this authority useless", a.dir)
	}
	if err := os.Rename(file, filepath.Join(a.dir, replacedFile)); err != nil {
		return internal("move the replaced authority aside", err)
	}
	return nil
}

// Open opens the authority of a directory. Errors: not_found; failed_precondition if users other than the directory's
// owner have access to the directory; invalid_argument with field dir.
func Open(dir string) (*Authority, error) {
	if dir == "" {
		return nil, protocol.Invalid("dir", "must not be empty")
	}
	a := &Authority{dir: dir, now: time.Now}
	if _, err := os.Stat(filepath.Join(dir, stateFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, protocol.Errorf(protocol.NotFound, "", "%s has no authority", dir)
	}
	if err := checkPrivate(dir); err != nil {
		return nil, err
	}
	_, err := a.load()
	return a, err
}

// lock takes the lock of the directory. It waits while another process holds the lock.
func (a *Authority) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(a.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, internal("lock the authority", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close() // nothing was written to it, and the first error says why
		return nil, internal("lock the authority", err)
	}
	return func() { _ = f.Close() }, nil // closing the file unlocks it
}

func (a *Authority) load() (*state, error) {
	data, err := os.ReadFile(filepath.Join(a.dir, stateFile))
	if err != nil {
		return nil, internal("read the authority", err)
	}
	s := &state{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "%s is damaged: restore it from a backup: %v",
			filepath.Join(a.dir, stateFile), err)
	}
	if s.Version != stateVersion {
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupportedVersion,
			"the authority in %s has format %d, and this program reads format %d", a.dir, s.Version, stateVersion)
	}
	return s, nil
}

func (a *Authority) store(s *state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return internal("write the authority", err)
	}
	return writeFile(filepath.Join(a.dir, stateFile), append(data, '\n'))
}

// change reads the authority, calls f to change it, signs the accounts whose content has changed, and stores the
// result. If f fails, nothing changes.
func (a *Authority) change(f func(s *state) error) error {
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := a.load()
	if err != nil {
		return err
	}
	a.retire(s)
	if err := f(s); err != nil {
		return err
	}
	if err := a.signAccounts(s); err != nil {
		return err
	}
	return a.store(s)
}

// Refresh removes the replaced signing keys whose AcceptedUntil has passed, and gives all other signing keys the
// permissions of this version of the program. If changed is true, call [Authority.Push] to tell the servers.
func (a *Authority) Refresh() (changed bool, err error) {
	err = a.change(func(s *state) error {
		before := slices.Clone(s.Accounts)
		err := a.signAccounts(s)
		changed = !slices.Equal(before, s.Accounts)
		return err
	})
	return changed, err
}
