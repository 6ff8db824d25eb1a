package protocol

// Rules say what a deployment requires of the messages in its event log.
type Rules struct {
	Deployment string // id of the deployment
	Signed     bool   // the deployment requires signatures
	Since      uint64 // the last record that may be unsigned, if Signed
}

// Proof holds the facts that a reader knows about the message of a batch.
type Proof struct {
	Hash      Hash       // hash of the payload
	Signature *Signature // nil: the message is not signed
	Writer    Writer     // the owner of the key in Signature
	Fault     *Error     // why Signature proves nothing: it is malformed or false, or its key belongs to nobody

	// After is the record of the previous message in the history, as the server named it when it republished this
	// message. 0: unknown, or this is the first message.
	After uint64

	// Notified says that a coordinator has verified the message and signed the notification that carried it, or that
	// the deployment does not require signatures. If Notified is true, Signed says whether the message is signed.
	Notified, Signed bool
}

// Check verifies the signature of a message on the subject of a sandbox, and sets Fault if the signature is false. It
// takes about 50 µs.
func (p *Proof) Check(deployment, tenant, sandbox string) {
	if p.Signature == nil || p.Fault != nil {
		return
	}
	if !p.Signature.Signs(SignedText(deployment, tenant, sandbox, p.Signature.Previous, p.Hash)) {
		p.Fault = AsError(notProven("it has a false signature of key %s", p.Signature.Key))
	}
}

// Chain holds the facts about a history that a reader needs to verify the next message. The zero value is the beginning
// of a history.
type Chain struct {
	Last    Hash `json:"last"`              // hash of the last accepted message
	Unknown bool `json:"unknown,omitempty"` // Last is unknown: an older version stored the state
	Signed  bool `json:"signed,omitempty"`  // an accepted message was signed
}

// Verify decides whether readers accept a message. The message must have a valid signature of a writer that may append
// it, and the signature must name the last accepted message. Messages from the time before the deployment required
// signatures may be unsigned, unless an earlier message in the history is signed. Verify also accepts a message that a
// coordinator has verified; see [Proof].Notified. state is the state before the message, or nil if the history before
// the message has been purged. Error: permission_denied with reason not_proven; readers then ignore the message.
func (c *Chain) Verify(r Rules, state *State, b *Batch, p *Proof) error {
	switch {
	case p.Notified:
		return nil
	case p.Fault != nil:
		return p.Fault
	case p.Signature == nil && c.Signed:
		return notProven("it is not signed, but an earlier message in the history is signed")
	case p.Signature == nil && r.Signed && b.Record > r.Since:
		return notProven("it is not signed, and this deployment requires signatures after record %d", r.Since)
	case p.Signature == nil:
		return nil
	case state != nil && !c.Unknown && p.Signature.Previous != c.Last:
		return notProven("its signature is for another place in the history, or names another previous message")
	}
	return MayAppend(state, b, p.Writer)
}

// Accept adds an accepted message to the chain.
func (c *Chain) Accept(p *Proof) {
	c.Last, c.Unknown = p.Hash, p.Hash == Hash{} // coordinators of older versions notify without the hash
	c.Signed = c.Signed || p.Signature != nil || p.Signed
}

// Requires reports whether a message must be proven: the message is signed, an earlier message in the history is
// signed, or the deployment requires signatures at this record.
func (c *Chain) Requires(r Rules, record uint64, p *Proof) bool {
	return p.Signature != nil || c.Signed || r.Signed && record > r.Since
}
