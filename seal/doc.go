// Package seal seals values that only one key opens: the values of secrets and of sensitive variables.
//
//	client ── To(fleet's key, tenant and name) ──► NATS ──► coordinator ── Keys.Open
//	worker ◄── Key.Open ── NATS ◄── To(worker's key, question) ──────────────────┘
//
// A sealed value names the key that opens it. Its sealed content includes its purpose: a value that was sealed for one
// tenant and name does not open for another. Keys are curve keys of NATS (xkeys). Each value is sealed with a key of
// its own, so the sealed value does not say who sealed it: the subject on which it arrives does.
//
// The package imports protocol and the keys of NATS. It does no I/O.
package seal
