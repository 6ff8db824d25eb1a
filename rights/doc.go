// Package rights says which NATS subjects each role may publish to and subscribe to.
//
//	table.go        the rights of each role, with the reason for each
//	accounts.go     which account each role is in, and what the accounts share
//	rights.go       identities, and the rights of one of them
//	credentials.go  the identity that a credentials file names
//
// One table serves every way to write permissions: [Template] writes them for a signing key whose users share them, and
// [Permissions] for one identity. docs/rights.md shows the table.
//
// The package is pure. Of this module it imports protocol only.
package rights
