// Package auth makes credentials for NATS servers in operator mode, and keeps the keys that sign them.
//
//	operator ── signs ──► accounts ── list ──► one signing key for each role ── signs ──► credentials of one identity
//	   │                     └── their revocations              └── its permissions: a template of package rights
//	   └── signs ──► system account, for changing accounts on running servers
//
// There is an account for the streams, one for workers and one for clients; the type Account of package rights says
// why. An [Authority] is a directory with these keys. Servers trust the operator and need nothing else: they check
// credentials without asking anybody. They learn of revocations and new signing keys from the accounts, which
// [Authority.Push] sends them.
//
//	authority.go   the directory: making, opening, locking and writing it
//	keys.go        seeds of keys
//	account.go     signing the accounts with the keys and revocations in the directory
//	issue.go       credentials: issuing, listing, revoking
//	keep.go        credentials of one process, made when they are missing or no longer valid
//	rotate.go      replacing the signing key of a role
//	secretskey.go  the fleet's keys for secrets, which coordinators hold
//	server.go      the configuration of servers, and pushing changed accounts to them
//	static.go      the alternative without an operator: users in a server's configuration
//
// The package imports rights, seal and protocol of this module, and does not know the NATS client.
package auth
