// Package evidence checks what the stored messages of a sandbox's history prove about their writers. It needs no
// connection: the evidence contains everything that a check uses.
//
//	sdk, from a coordinator ──► Evidence ──► Check ──► Report
//	a file ─────────── Parse ──────┘
//
// The check reaches the same verdicts as the coordinators: it folds the history and, like them, verifies each message
// with a Chain of package protocol. It also finds missing messages, and the end of the unsigned part of the history.
//
// A check proves that the history was written by the holders of the keys in the evidence. The evidence also names the
// owners of the keys and the record after which messages must be signed. No signature proves this information: it comes
// from the coordinator that sent the evidence.
//
// The package imports protocol.
package evidence
