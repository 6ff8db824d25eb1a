// Package evidence checks what the stored messages of a sandbox's history prove about who wrote them. It needs no
// connection: everything that a check uses is in the evidence.
//
//	sdk, from a coordinator ──► Evidence ──► Check ──► Report
//	a file ─────────── Parse ──────┘
//
// The check reaches the same verdicts as the coordinators: it folds the history and, like them, verifies each message
// with a Chain of package protocol. It also finds missing messages, and the end of the unsigned part of the history.
//
// A check proves that the history was written by the holders of the keys in the evidence. The evidence itself says to
// whom these keys belong and since when messages must be signed. This information comes from the coordinator that sent
// the evidence.
//
// The package imports protocol.
package evidence
