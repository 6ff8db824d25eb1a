// Package evidence checks what the stored messages of a sandbox's history prove about who wrote them. It needs no
// connection: everything that a check uses is in the evidence.
//
//	sdk, from a coordinator ──► Evidence ──► Check ──► Report
//	a file ─────────── Parse ──────┘
//
// The check comes to the same verdicts as the coordinators: it verifies the signature of each message, folds the history
// and asks the chain of package protocol. It also finds messages that are missing, and the end of the part
// of the history that is not signed.
//
// A check proves that the history was written by the holders of the keys in the evidence. The evidence itself says to
// whom these keys belong and since when messages must be signed. It has this from the coordinator that it was read
// from.
//
// The package imports protocol.
package evidence
