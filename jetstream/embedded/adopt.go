package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
)

// globalAccount is the account of all connections to a server without an operator.
const globalAccount = "$G"

// streams names the account that should have the streams. The result is empty if this account is not known.
func (o *Operators) streams() string {
	if o == nil {
		return globalAccount
	}
	return o.Streams
}

// adoptStreams gives the streams of a store to an account. A server keeps the streams of each account in a directory
// with the account's name. No file in that directory names the account. So one rename moves all streams of an account,
// and a crash leaves them all in the old directory or all in the new one. adoptStreams does nothing if the account
// already has the streams, if there are no streams, or if account is empty. Error: failed_precondition if several
// accounts have streams.
func adoptStreams(dir, account string) error {
	store := filepath.Join(dir, server.JetStreamStoreDir)
	found, err := accountsWithStreams(store)
	if err != nil {
		return protocol.Errorf(protocol.Internal, "", "read the store %s: %v", store, err)
	}
	if account == "" || len(found) == 0 || len(found) == 1 && found[0] == account {
		return nil
	}
	if len(found) > 1 {
		return protocol.Errorf(protocol.FailedPrecondition, "",
			"the store %s has streams of several accounts, %s: keep the directory of the account that you want, "+
				"and move the other directories out of the store", store, strings.Join(found, " and "))
	}
	to := filepath.Join(store, account)
	// The server leaves empty directories behind. A directory that is not empty stays, and the rename then fails.
	for _, empty := range []string{filepath.Join(to, "streams"), to} {
		_ = os.Remove(empty) // the rename reports a directory that stayed
	}
	err = os.Rename(filepath.Join(store, found[0]), to)
	if err == nil {
		err = syncDir(store)
	}
	if err != nil {
		return protocol.Errorf(protocol.Internal, "", "give the streams of account %s to account %s: %v", found[0], account,
			err)
	}
	return nil
}

// HasOperator reports whether a store has streams that belong to an account of an operator. dir is [Config.Dir].
func HasOperator(dir string) (bool, error) {
	found, err := accountsWithStreams(filepath.Join(dir, server.JetStreamStoreDir))
	if err != nil {
		return false, protocol.Errorf(protocol.Internal, "", "read the store %s: %v", dir, err)
	}
	return slices.ContainsFunc(found, nkeys.IsValidPublicAccountKey), nil
}

// accountsWithStreams returns the accounts that have streams in a store.
func accountsWithStreams(store string) (accounts []string, err error) {
	all, err := os.ReadDir(store)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range all {
		name := entry.Name()
		if name != globalAccount && !nkeys.IsValidPublicAccountKey(name) {
			continue
		}
		streams, err := os.ReadDir(filepath.Join(store, name, "streams"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, s := range streams {
			if !strings.HasPrefix(s.Name(), ".") { // the server is removing a stream whose name begins with a dot
				accounts = append(accounts, name)
				break
			}
		}
	}
	return accounts, nil
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
